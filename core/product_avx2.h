// 16 lanes as two registers. Included once per instruction set, inside its namespace.

struct I {
  __m256i a, b;
};
struct F {
  __m256 a, b;
};

static BS_INLINE const __m256i* as_vectors(const void* p) { return static_cast<const __m256i*>(p); }
static BS_INLINE I load_i(const void* p) {
  return {_mm256_loadu_si256(as_vectors(p)), _mm256_loadu_si256(as_vectors(p) + 1)};
}
static BS_INLINE void store_i(void* p, I v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v.a);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, v.b);
}
static BS_INLINE F load_f(const void* p) {
  const auto* f = static_cast<const float*>(p);
  return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
}
static BS_INLINE void store_f(void* p, F v) {
  auto* f = static_cast<float*>(p);
  _mm256_storeu_ps(f, v.a);
  _mm256_storeu_ps(f + 8, v.b);
}
static BS_INLINE I splat_i(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
static BS_INLINE F splat_f(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
static BS_INLINE I zero_i() { return splat_i(0); }
static BS_INLINE I spread_i(const void* p) {
  int32_t v;
  memcpy(&v, p, 4);
  return splat_i(v);
}
static BS_INLINE F spread_f(const void* p) {
  const __m256 v = _mm256_broadcast_ss(static_cast<const float*>(p));
  return {v, v};
}
static BS_INLINE I add(I x, I y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
static BS_INLINE I multiply(I x, I y) {
  return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
}
static BS_INLINE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static BS_INLINE F subtract(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static BS_INLINE F multiply_add(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static BS_INLINE F bits_f(I v) { return {_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b)}; }
static BS_INLINE F to_f(I v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }

inline constexpr int kBias = 0;

// Sums of two products fit int16 where w is at most 120; bytes beyond are taken as twice their half
// and a bit.
template <bool kWide>
static BS_INLINE __m256i dot8_half(__m256i t, __m256i w, __m256i x) {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (!kWide) {
    return _mm256_add_epi32(t, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones));
  }
  const __m256i bit = _mm256_and_si256(w, _mm256_set1_epi8(1));
  const __m256i half = _mm256_and_si256(_mm256_srli_epi16(w, 1), _mm256_set1_epi8(127));
  const __m256i twice = _mm256_madd_epi16(_mm256_maddubs_epi16(half, x), _mm256_set1_epi16(2));
  const __m256i once = _mm256_madd_epi16(_mm256_maddubs_epi16(bit, x), ones);
  return _mm256_add_epi32(t, _mm256_add_epi32(twice, once));
}
template <bool kWide>
static BS_INLINE I dot8(I t, I w, I x) {
  return {dot8_half<kWide>(t.a, w.a, x.a), dot8_half<kWide>(t.b, w.b, x.b)};
}
static BS_INLINE I dot16(I t, I w, I x) {
  return {_mm256_add_epi32(t.a, _mm256_madd_epi16(w.a, x.a)),
          _mm256_add_epi32(t.b, _mm256_madd_epi16(w.b, x.b))};
}

static BS_INLINE I widen_bytes(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
static BS_INLINE I widen_halves(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)),
          _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1))};
}
static BS_INLINE I exponents(const void* p) {
  const I v = widen_bytes(p);
  return {_mm256_slli_epi32(v.a, 23), _mm256_slli_epi32(v.b, 23)};
}
static BS_INLINE F scale_f16(const uint8_t* p) {
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
static BS_INLINE F first_of(I pair) {
  return bits_f({_mm256_slli_epi32(pair.a, 16), _mm256_slli_epi32(pair.b, 16)});
}
static BS_INLINE F second_of(I pair) {
  const __m256i mask = _mm256_set1_epi32(int32_t(0xffff0000));
  return bits_f({_mm256_and_si256(pair.a, mask), _mm256_and_si256(pair.b, mask)});
}
static BS_INLINE F scale_bf16(const uint8_t* p) { return first_of(widen_halves(p)); }

// Four-bit codes by table, 32 at a time; `high`: those in the upper halves of bytes.
static BS_INLINE I look_up_nibbles(I v, bool high, const uint8_t* table) {
  const __m256i entries =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  const __m256i mask = _mm256_set1_epi8(15);
  const auto half = [&](__m256i x) {
    const __m256i moved = high ? _mm256_srli_epi16(x, 4) : x;
    return _mm256_shuffle_epi8(entries, _mm256_and_si256(moved, mask));
  };
  return {half(v.a), half(v.b)};
}
