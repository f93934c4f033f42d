// From sums to y: factors of rows and columns, bias, activation, the type of y. Plain loops: the
// compiler makes vectors of them. Included once per instruction set, inside its namespace.

// e^x within 2 ulp; 0 below, Inf above the range, NaN of NaN.
static BS_INLINE float exponential(float x) {
  const float bounded = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;  // NaN stays
  const float n = (bounded * 0x1.715476p+0f + 0x1.8p23f) - 0x1.8p23f;
  const float r = (bounded - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float p = 0x1.a01a02p-13f;
  p = p * r + 0x1.6c16c2p-10f;
  p = p * r + 0x1.111112p-7f;
  p = p * r + 0x1.555556p-5f;
  p = p * r + 0x1.555556p-3f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // In two steps: 2^n leaves the normal floats at both ends.
  const auto whole = int32_t(n == n ? n : 0.0f);
  const int32_t half = whole >> 1;
  return p * float_of(uint32_t(half + 127) << 23) * float_of(uint32_t(whole - half + 127) << 23);
}

// 1 − erf(z) for z ≥ 0, within 1.3e-7 of it (Numerical Recipes' Chebyshev fit).
static BS_INLINE float complement(float z) {
  const float t = 1.0f / (1.0f + 0.5f * z);
  float p = 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  return t * exponential(p - z * z);
}

static BS_INLINE float logistic(float x) { return 1.0f / (1.0f + exponential(-x)); }

static BS_INLINE float activated(Activation activation, float v) {
  switch (activation) {
    case Activation::kRelu:
      return v > 0.0f || v != v ? v : 0.0f;
    case Activation::kGelu: {
      const float half = 0.5f * complement(std::fabs(v) * 0x1.6a09e6p-1f);
      const float share = v < 0.0f ? half : 1.0f - half;
      return v == -INFINITY ? 0.0f : v * share;
    }
    case Activation::kGeluTanh: {
      // ½(1 + tanh u) is the logistic function of 2u
      const float u = 0x1.988454p+0f * (v + 0.044715f * v * v * v);
      return v == -INFINITY ? 0.0f : v * logistic(u);
    }
    case Activation::kSilu:
      return v == -INFINITY ? 0.0f : v * logistic(v);
    default:
      return v;
  }
}

static void finish_row(const WeightView& w, const Finish& f, size_t row, size_t column,
                       size_t columns, const float* c) {
  float v[kMostColumns];
  const float factor = (f.row_scale ? f.row_scale[row] : 1.0f) * f.unit;
  const float* scale = w.column_scale + column;
  for (size_t i = 0; i < columns; ++i) v[i] = c[i];
  if (f.row_zero != nullptr) {
    const float zero = f.row_zero[row];
    const float* sum = w.column_sum + column;
    for (size_t i = 0; i < columns; ++i) v[i] -= zero * sum[i];
  }
  for (size_t i = 0; i < columns; ++i) v[i] *= scale[i] * factor;
  if (f.bias != nullptr) {
    for (size_t i = 0; i < columns; ++i) v[i] += f.bias[column + i];
  }
  switch (f.activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      for (size_t i = 0; i < columns; ++i) v[i] = activated(Activation::kRelu, v[i]);
      break;
    case Activation::kGelu:
      for (size_t i = 0; i < columns; ++i) v[i] = activated(Activation::kGelu, v[i]);
      break;
    case Activation::kGeluTanh:
      for (size_t i = 0; i < columns; ++i) v[i] = activated(Activation::kGeluTanh, v[i]);
      break;
    case Activation::kSilu:
      for (size_t i = 0; i < columns; ++i) v[i] = activated(Activation::kSilu, v[i]);
      break;
  }
  auto* y = static_cast<uint8_t*>(f.y) + row * f.stride;
  if (f.type == TensorType::kF32) {
    memcpy(reinterpret_cast<float*>(y) + column, v, columns * sizeof(float));
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(y) + column;
  if (f.type == TensorType::kBf16) {
    for (size_t i = 0; i < columns; ++i) to[i] = float_to_bfloat(v[i]);
  } else {
    for (size_t i = 0; i < columns; ++i) to[i] = float_to_half(v[i]);
  }
}
