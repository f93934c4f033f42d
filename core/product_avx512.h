// 16 lanes as one register. Included once per instruction set, inside its namespace.

using I = __m512i;
using F = __m512;

static BS_INLINE I load_i(const void* p) { return _mm512_loadu_si512(p); }
static BS_INLINE void store_i(void* p, I v) { _mm512_storeu_si512(p, v); }
static BS_INLINE F load_f(const void* p) { return _mm512_loadu_ps(p); }
static BS_INLINE void store_f(void* p, F v) { _mm512_storeu_ps(p, v); }
static BS_INLINE I zero_i() { return _mm512_setzero_si512(); }
static BS_INLINE F zero_f() { return _mm512_setzero_ps(); }
// One dword of memory in every lane.
static BS_INLINE I spread_i(const void* p) {
  int32_t v;
  memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}
static BS_INLINE F spread_f(const void* p) { return _mm512_castsi512_ps(spread_i(p)); }
static BS_INLINE F splat_f(float v) { return _mm512_set1_ps(v); }
static BS_INLINE I splat_i(int32_t v) { return _mm512_set1_epi32(v); }
static BS_INLINE I add(I a, I b) { return _mm512_add_epi32(a, b); }
static BS_INLINE I multiply(I a, I b) { return _mm512_mullo_epi32(a, b); }
static BS_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
static BS_INLINE F subtract(F a, F b) { return _mm512_sub_ps(a, b); }
static BS_INLINE F multiply_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static BS_INLINE F bits_f(I v) { return _mm512_castsi512_ps(v); }
static BS_INLINE F to_f(I v) { return _mm512_cvtepi32_ps(v); }

// t + Σ w · x over the four bytes of each lane: w unsigned, x signed.
inline constexpr int kBias = 0;  // what dot8 wants subtracted of the unsigned w
template <bool kWide>
static BS_INLINE I dot8(I t, I w, I x) {
  return _mm512_dpbusd_epi32(t, w, x);
}
static BS_INLINE I dot16(I t, I w, I x) { return _mm512_dpwssd_epi32(t, w, x); }

static BS_INLINE I widen_bytes(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
static BS_INLINE I exponents(const void* p) { return _mm512_slli_epi32(widen_bytes(p), 23); }

// The scales of 16 columns.
static BS_INLINE F scale_e8m0(const uint8_t* p) {
  return bits_f(_mm512_max_epu32(exponents(p), splat_i(0x00400000)));
}
static BS_INLINE F scale_e4m3(const uint8_t* p) {
  // As float16, 2^8 too small; no scale is negative.
  const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(bytes, 7)), splat_f(256.0f));
}
static BS_INLINE F scale_f16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static BS_INLINE F scale_bf16(const uint8_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return bits_f(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
#if defined(__AVX512BF16__)
static BS_INLINE F dot_pairs(F t, I a, I b) {
  return _mm512_dpbf16_ps(t, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
}
#endif
