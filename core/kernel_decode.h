// Codes to float32. Included once per instruction set, inside its namespace.

// The value of a code on the element grid.
template <int ID>
static BS_INLINE float value_of(uint32_t code) {
  constexpr Format f = kFormats[ID];
  constexpr int M = f.mantissa_bits;
  constexpr uint32_t ones = (1u << (f.bits - 1)) - 1;
  const uint32_t sign = (code >> (f.bits - 1)) << 31;
  const uint32_t magnitude = code & ones;
  const float normal = float_of((magnitude << (23 - M)) + (uint32_t(f.emin - 1 + 127) << 23));
  const float subnormal = float(int32_t(magnitude)) * float_of(uint32_t(f.emin - M + 127) << 23);
  float value = magnitude < (1u << M) ? subnormal : normal;
  if constexpr (f.specials == Specials::kNan) {
    value = magnitude == ones ? float_of(0x7fc00000) : value;
  }
  if constexpr (f.specials == Specials::kIeee) {
    constexpr uint32_t infinite = ones & ~((1u << M) - 1);
    const float special = float_of(magnitude == infinite ? kInfBits : 0x7fc00000);
    value = magnitude >= infinite ? special : value;
  }
  return float_of(bits_of(value) | sign);
}

template <bool kSaturate>
static BS_INLINE float saturated(float y) {
  if constexpr (!kSaturate) return y;
  y = y > kFloatMax ? kFloatMax : y;
  return y < -kFloatMax ? -kFloatMax : y;
}

template <int ID, bool kSaturate>
static BS_INLINE float decoded_float(uint8_t code, float scale) {
  constexpr Format format = kFormats[ID];
  const float r = value_of<ID>(code);
  const float y = r * scale;
  if constexpr (format.specials == Specials::kIeee) {
    return (bits_of(r) & kMagnitude) == kInfBits
               ? y
               : saturated<kSaturate>(y);  // an Inf code stays Inf
  }
  return saturated<kSaturate>(y);
}

template <int ID, bool kSaturate>
static BS_INLINE void decode_run(const uint8_t* codes, size_t n, float scale,
                                 float* BS_RESTRICT out) {
  for (size_t i = 0; i < n; ++i) out[i] = decoded_float<ID, kSaturate>(codes[i], scale);
}

template <int ID, bool kSaturate>
static void decode_float(const Piece& p, const Numbers&, const uint8_t* codes, const uint16_t*,
                         float* BS_RESTRICT out) {
  if (p.across == Across::kColumns) {
    for (size_t i = 0; i < p.size; ++i)
      out[i] = decoded_float<ID, kSaturate>(codes[i], p.params.scale[i]);
    return;
  }
  size_t room = p.block - p.skip;
  for (size_t i = 0, b = 0; i < p.size; ++b, room = p.block) {
    const size_t n = p.size - i < room ? p.size - i : room;
    const float scale = p.params.scale[b];
    if (n == 32) {
      decode_run<ID, kSaturate>(codes + i, 32, scale, out + i);
    } else {
      decode_run<ID, kSaturate>(codes + i, n, scale, out + i);
    }
    i += n;
  }
}

// step: the value of 1 (2^-6 in mxint8). Codes below `bits` bits arrive as bytes, sign not yet
// spread.
template <class Code>
static BS_INLINE int32_t signed_value(Code code, int unused_bits, uint32_t flip) {
  const uint32_t pattern = uint32_t(code) << unused_bits >> unused_bits;
  return int32_t(pattern ^ flip) - int32_t(flip);
}

template <bool kSaturate, class Code>
static void decode_fixed_from(const Piece& p, const Format& format, const Code* codes,
                              float* BS_RESTRICT out) {
  const uint32_t flip = format.is_signed ? 1u << (format.bits - 1) : 0;
  const int unused = 32 - format.bits;
  const float step = 1.0f / float(1 << format.mantissa_bits);
  if (p.across == Across::kColumns) {
    for (size_t i = 0; i < p.size; ++i) {
      const int32_t value = signed_value(codes[i], unused, flip) - p.params.zero[i];
      out[i] = saturated<kSaturate>(float(value) * step * p.params.scale[i]);
    }
    return;
  }
  size_t room = p.block - p.skip;
  for (size_t i = 0, b = 0; i < p.size; ++b, room = p.block) {
    const size_t n = p.size - i < room ? p.size - i : room;
    const float scale = p.params.scale[b];
    const int32_t zero = p.params.zero[b];
    for (size_t j = i; j < i + n; ++j) {
      out[j] =
          saturated<kSaturate>(float(signed_value(codes[j], unused, flip) - zero) * step * scale);
    }
    i += n;
  }
}

template <bool kSaturate>
static void decode_fixed(const Piece& p, const Numbers& numbers, const uint8_t* codes,
                         const uint16_t* wide, float* BS_RESTRICT out) {
  const Format format = numbers.element_format();
  if (format.bits > 8) {
    decode_fixed_from<kSaturate>(p, format, wide, out);
  } else {
    decode_fixed_from<kSaturate>(p, format, codes, out);
  }
}

template <bool kSaturate>
static DecodeKernel decode_kernel_of(int element) {
  switch (element) {
    case k_fp8_e4m3:
      return decode_float<k_fp8_e4m3, kSaturate>;
    case k_fp8_e5m2:
      return decode_float<k_fp8_e5m2, kSaturate>;
    case k_fp6_e3m2:
      return decode_float<k_fp6_e3m2, kSaturate>;
    case k_fp6_e2m3:
      return decode_float<k_fp6_e2m3, kSaturate>;
    case k_fp4_e2m1:
      return decode_float<k_fp4_e2m1, kSaturate>;
    default:
      return decode_fixed<kSaturate>;
  }
}

static DecodeKernel decode_kernel(const Numbers& numbers) {
  return numbers.saturates ? decode_kernel_of<true>(numbers.element)
                           : decode_kernel_of<false>(numbers.element);
}
