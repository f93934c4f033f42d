// From the extremes of blocks to their parameters: the definitions of
// src/blockscale/numerics/scales.py, a loop each, all in float32 and integers.
// Included once per instruction set, inside its namespace.

static BS_INLINE float greater(float a, float b) { return a > b ? a : b; }
static BS_INLINE float lesser(float a, float b) { return a < b ? a : b; }

// What is added to the bits of amax so that their exponent field becomes that of the rule.
static inline int32_t rule_increment(const Numbers& numbers) {
  const Format& element = numbers.element_format();
  switch (numbers.rule) {
    case Rule::kCeil:
      return 0x7fffff;
    case Rule::kEven:
      return 1 << (22 - element.fraction_bits());
    case Rule::kRceil:
      return 0x7fffff - int32_t(bits_of(element.max) & 0x7fffff);
    default:
      return 0;
  }
}

static void mx_exponents(const Numbers& numbers, const uint32_t* amax, size_t n, int32_t* s) {
  const bool by_field = !numbers.clamps;
  const int32_t emax = numbers.element_format().emax;
  const int32_t low = by_field ? -127 - emax : -127;
  const int32_t increment = rule_increment(numbers);
  const uint32_t normalise_below = by_field ? 0 : 0x00800000;
  const uint32_t infinite = numbers.rule == Rule::kRceil ? kInfBits : kSign;  // Inf / max is Inf
  for (size_t i = 0; i < n; ++i) {
    // A subnormal gets the bits it would have with an exponent field below 0.
    const int32_t normal = int32_t(amax[i]);
    const int32_t lowered = int32_t(bits_of(float(normal))) - (149 << 23);
    const int32_t bits = amax[i] < normalise_below ? lowered : normal;
    // A subnormal whose field of 0 is taken for an exponent has a step of half as many ulps.
    const int32_t added = by_field && amax[i] < 0x00800000 ? increment / 2 : increment;
    const uint32_t raised = uint32_t(bits) + uint32_t(added);  // of a NaN: anything, but defined
    int32_t e = (int32_t(raised) >> 23) - 127 - emax;
    e = amax[i] >= infinite ? 127 : e;
    e = e < low ? low : e;
    s[i] = e > 127 ? 127 : e;
  }
}

// 2^e for -127 <= e <= 127.
static BS_INLINE float power(int32_t e) {
  const uint32_t bits = uint32_t(e + 127) << 23;
  return float_of(e == -127 ? 0x00400000u : bits);
}

static void mx_params(const Numbers& numbers, const uint32_t* amax, const int32_t* s, size_t n,
                      float* BS_RESTRICT factor, float* BS_RESTRICT scale, float* BS_RESTRICT lift,
                      uint8_t* codes) {
  const uint32_t most = numbers.nonfinite == Nonfinite::kInfLarge ? kInfBits : kInfBits - 1;
  const float nan = float_of(0x7fc00000);
  for (size_t i = 0; i < n; ++i) {
    const bool spoilt = amax[i] > most;
    const bool lifted = s[i] < -127;
    const int32_t e = lifted ? s[i] + 16 : s[i];
    lift[i] = lifted ? 65536.0f : 1.0f;
    scale[i] = spoilt ? nan : power(e);
    factor[i] = spoilt ? nan : power(-e);
  }
  if (codes == nullptr) return;
  for (size_t i = 0; i < n; ++i) codes[i] = uint8_t(amax[i] > most ? kE8m0Nan : s[i] + 127);
}

// Block scales under a tensor scale: fp8_e4m3 codes.
static void tensor_scaled_codes(const Numbers& numbers, const uint32_t* amax, size_t n, float t,
                                uint8_t* BS_RESTRICT codes) {
  constexpr Format format = kFormats[k_fp8_e4m3];
  const float element_max = numbers.element_format().max;
  const uint32_t most = numbers.nonfinite == Nonfinite::kInfLarge ? kInfBits : kInfBits - 1;
  const int32_t least = numbers.least_scale;
  const int32_t zero = numbers.zero_scale;
  const Ties none(format);
  for (size_t i = 0; i < n; ++i) {
    const float ratio = lesser(float_of(amax[i]) / element_max / t, format.max);
    int32_t code = round_element<HalfEven>(FloatElement<k_fp8_e4m3>{}, ratio, ratio, none, 0).code;
    code = code < least ? least : code;
    code = amax[i] == 0 ? zero : code;
    codes[i] = uint8_t(amax[i] > most ? 0x7f : code);
  }
}

// Multipliers from such codes: f32(b · t), and x's factor if it is f32(f32(1 / t) / b).
static void tensor_scaled_params(const Numbers& numbers, const uint8_t* codes, size_t n, float t,
                                 float* BS_RESTRICT factor, float* BS_RESTRICT scale) {
  const float infinity = float_of(kInfBits);
  for (size_t i = 0; i < n; ++i) {
    const float b = value_of<k_fp8_e4m3>(codes[i]);
    scale[i] = b * t;
    factor[i] = scale[i] == 0 ? infinity : scale[i];  // x / Inf: a zero with the sign of x
  }
  if (!numbers.reciprocal) return;
  const float inverse = 1.0f / t;
  for (size_t i = 0; i < n; ++i) {
    const float b = value_of<k_fp8_e4m3>(codes[i]);
    factor[i] = scale[i] == 0 ? 0.0f : inverse / b;
  }
}

static BS_INLINE float rounded_to_integer(float v) {
  const float limit = 0x1p22f;
  v = greater(lesser(v, limit), -limit);
  const float anchor = 1.5f * 0x1p23f;
  return (v + anchor) - anchor;
}

// Scales, as float32 on the grid of the scale format, and zero points; the extremes as magnitudes.
static void affine_scales(const Numbers& numbers, const uint32_t* negative,
                          const uint32_t* positive, size_t n, TensorType type,
                          float* BS_RESTRICT scale, int32_t* BS_RESTRICT zero) {
  const Format& element = numbers.element_format();
  const Format& format = numbers.scale_format();
  const bool fixed = element.kind == Kind::kFixed;
  const float qmin = fixed ? float(numbers.quant_min) : -element.max;
  const float qmax = fixed ? float(numbers.quant_max) : element.max;
  const float half_range = (qmax - qmin) / 2;
  // The least scale: the smallest normal of the scale format; in torchao's way, of the tensor's
  // type too.
  constexpr int tensor_format[] = {k_f32, k_bf16, k_f16};
  float least = power_of_two(format.emin);
  if (numbers.reciprocal) {
    least = greater(least, power_of_two(kFormats[tensor_format[int(type)]].emin));
  }
  for (size_t i = 0; i < n; ++i) {
    const float low = -float_of(negative[i]), high = float_of(positive[i]);
    float s;
    if (numbers.rule == Rule::kSymmetric) {
      s = greater(-low, high) / half_range;
    } else if (numbers.rule == Rule::kNoClip) {
      s = greater(low / qmin, high / qmax);
    } else {
      // Halves only where the span overflows: half of a number near 2^-126 may not be exact.
      const float span = high - low;
      const bool fits = span <= kFloatMax;
      s = (fits ? span : high * 0.5f - low * 0.5f) / (fits ? qmax - qmin : half_range);
    }
    scale[i] = greater(s, least);
  }
  if (numbers.scale == k_bf16) {
    for (size_t i = 0; i < n; ++i) scale[i] = bfloat_to_float(float_to_bfloat(scale[i]));
  } else if (numbers.scale == k_f16) {
    for (size_t i = 0; i < n; ++i) scale[i] = half_to_float(float_to_half(scale[i]));
  }
  const int sum = numbers.quant_min + numbers.quant_max + 1;
  const int middle = sum / 2;  // toward zero, as Python's int does
  for (size_t i = 0; i < n; ++i) {
    scale[i] = lesser(scale[i], format.max);
    const float z = qmin - rounded_to_integer(-float_of(negative[i]) / scale[i]);
    const int32_t chosen = int32_t(lesser(greater(z, qmin), qmax));
    zero[i] = numbers.rule == Rule::kAsymmetric ? chosen : numbers.zero_point ? middle : 0;
  }
}

// The rest of what the kernels want, from scales and zero points.
static void affine_params(const Numbers& numbers, size_t n, const float* scale, const int32_t* zero,
                          float* BS_RESTRICT factor, float* BS_RESTRICT low,
                          float* BS_RESTRICT high) {
  if (numbers.reciprocal) {
    for (size_t i = 0; i < n; ++i) factor[i] = 1.0f / scale[i];
  } else {
    for (size_t i = 0; i < n; ++i) factor[i] = scale[i];
  }
  if (numbers.element_format().kind != Kind::kFixed) return;
  for (size_t i = 0; i < n; ++i) {
    low[i] = float(numbers.quant_min - zero[i]);
    high[i] = float(numbers.quant_max - zero[i]);
  }
}

static void stored_scales(const Numbers& numbers, const void* from, size_t n,
                          float* BS_RESTRICT scale) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  const auto* halves = static_cast<const uint16_t*>(from);
  switch (numbers.scale) {
    case k_e8m0:
      for (size_t i = 0; i < n; ++i) {
        const float value = power(int32_t(bytes[i]) - 127);
        scale[i] = bytes[i] == kE8m0Nan ? float_of(0x7fc00000) : value;
      }
      break;
    case k_bf16:
      for (size_t i = 0; i < n; ++i) scale[i] = bfloat_to_float(halves[i]);
      break;
    case k_f16:
      for (size_t i = 0; i < n; ++i) scale[i] = half_to_float(halves[i]);
      break;
    default:
      memcpy(scale, from, n * sizeof(float));
  }
}

static bool overflows(const float* scale, const float* low, const float* high, size_t n) {
  int32_t reach = 0;  // bits of the greatest magnitude; NaN does not count
  for (size_t i = 0; i < n; ++i) {
    const auto y = int32_t(bits_of(greater(high[i], -low[i]) * scale[i]) & kMagnitude);
    const int32_t counted = y <= int32_t(kInfBits) ? y : 0;
    reach = counted > reach ? counted : reach;
  }
  return reach >= int32_t(kInfBits);
}
