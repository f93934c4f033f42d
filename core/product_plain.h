// 16 lanes as arrays, for machines without a kernel of their own: the compiler makes what vectors
// it can. Included once per instruction set, inside its namespace.

struct I {
  int32_t v[kLanes];
};
struct F {
  float v[kLanes];
};

template <class V, class Each>
static BS_INLINE V each_lane(Each each) {
  V result;
  for (size_t i = 0; i < kLanes; ++i) result.v[i] = each(i);
  return result;
}

template <class V>
static BS_INLINE V from_memory(const void* p) {
  V v;
  memcpy(&v, p, sizeof(v));
  return v;
}
static BS_INLINE I load_i(const void* p) { return from_memory<I>(p); }
static BS_INLINE F load_f(const void* p) { return from_memory<F>(p); }
static BS_INLINE void store_i(void* p, const I& v) { memcpy(p, &v, sizeof(v)); }
static BS_INLINE void store_f(void* p, const F& v) { memcpy(p, &v, sizeof(v)); }
static BS_INLINE I splat_i(int32_t value) {
  return each_lane<I>([&](size_t) { return value; });
}
static BS_INLINE F splat_f(float value) {
  return each_lane<F>([&](size_t) { return value; });
}
static BS_INLINE I zero_i() { return I{}; }
static BS_INLINE I spread_i(const void* p) {
  int32_t value;
  memcpy(&value, p, 4);
  return splat_i(value);
}
static BS_INLINE F spread_f(const void* p) {
  float value;
  memcpy(&value, p, 4);
  return splat_f(value);
}
// Sums may pass over the sign: unsigned.
static BS_INLINE I add(const I& a, const I& b) {
  return each_lane<I>([&](size_t i) { return int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); });
}
static BS_INLINE I multiply(const I& a, const I& b) {
  return each_lane<I>([&](size_t i) { return a.v[i] * b.v[i]; });
}
static BS_INLINE F add(const F& a, const F& b) {
  return each_lane<F>([&](size_t i) { return a.v[i] + b.v[i]; });
}
static BS_INLINE F subtract(const F& a, const F& b) {
  return each_lane<F>([&](size_t i) { return a.v[i] - b.v[i]; });
}
static BS_INLINE F multiply_add(const F& a, const F& b, const F& c) {
  return each_lane<F>([&](size_t i) { return a.v[i] * b.v[i] + c.v[i]; });
}
static BS_INLINE F bits_f(const I& v) { return from_memory<F>(&v); }
static BS_INLINE F to_f(const I& v) {
  return each_lane<F>([&](size_t i) { return float(v.v[i]); });
}

inline constexpr int kBias = 0;
template <bool kWide>
static BS_INLINE I dot8(const I& t, const I& w, const I& x) {
  uint8_t a[4 * kLanes];
  int8_t b[4 * kLanes];
  memcpy(a, &w, sizeof(a));
  memcpy(b, &x, sizeof(b));
  return each_lane<I>([&](size_t i) {
    const int sum = a[4 * i] * b[4 * i] + a[4 * i + 1] * b[4 * i + 1] +
                    a[4 * i + 2] * b[4 * i + 2] + a[4 * i + 3] * b[4 * i + 3];
    return int32_t(uint32_t(t.v[i]) + uint32_t(sum));
  });
}
static BS_INLINE I dot16(const I& t, const I& w, const I& x) {
  int16_t a[2 * kLanes], b[2 * kLanes];
  memcpy(a, &w, sizeof(a));
  memcpy(b, &x, sizeof(b));
  return each_lane<I>([&](size_t i) {
    const int sum = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return int32_t(uint32_t(t.v[i]) + uint32_t(sum));
  });
}

static BS_INLINE I widen_bytes(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return each_lane<I>([&](size_t i) { return int32_t(bytes[i]); });
}
static BS_INLINE I exponents(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return each_lane<I>([&](size_t i) { return int32_t(uint32_t(bytes[i]) << 23); });
}
static BS_INLINE F scale_f16(const uint8_t* p) {
  uint16_t h[kLanes];
  memcpy(h, p, sizeof(h));
  return each_lane<F>([&](size_t i) { return half_to_float(h[i]); });
}
static BS_INLINE F scale_bf16(const uint8_t* p) {
  uint16_t h[kLanes];
  memcpy(h, p, sizeof(h));
  return each_lane<F>([&](size_t i) { return bfloat_to_float(h[i]); });
}

static BS_INLINE F first_of(const I& pair) {
  return bits_f(each_lane<I>([&](size_t i) { return int32_t(uint32_t(pair.v[i]) << 16); }));
}
static BS_INLINE F second_of(const I& pair) {
  return bits_f(each_lane<I>([&](size_t i) { return pair.v[i] & int32_t(0xffff0000); }));
}
