// Packed 4- and 6-bit codes to float32 by table: a table of the element's values, multiplied by the scale
// once a block, and a permutation that looks up 16 codes at a time. Runs of 32 codes; the rest and other
// processors take the way of kernel_decode.h.
// Included once per instruction set, inside its namespace.

// 32 codes at `packed`, which start on a byte.
template <int ID>
struct Lookup {
  static constexpr bool kExists = false;
  explicit Lookup() {}
  void set_scale(float, bool) {}
  void run(const uint8_t*, float*) const {}
  void run16(const uint8_t*, float*) const {}
};

#if defined(__AVX512VBMI__)

static BS_INLINE __m512 saturated_table(__m512 t, bool saturate) {
  // A NaN is the second operand, so it stays.
  const __m512 top = _mm512_set1_ps(kFloatMax), bottom = _mm512_set1_ps(-kFloatMax);
  return saturate ? _mm512_max_ps(bottom, _mm512_min_ps(top, t)) : t;
}

template <>
struct Lookup<k_fp4_e2m1> {
  static constexpr bool kExists = true;
  __m512 values, scaled;

  Lookup() {
    float table[16];
    for (uint32_t i = 0; i < 16; ++i) table[i] = value_of<k_fp4_e2m1>(i);
    values = _mm512_loadu_ps(table);
    scaled = values;
  }
  BS_INLINE void set_scale(float scale, bool saturate) {
    scaled = saturated_table(_mm512_mul_ps(values, _mm512_set1_ps(scale)), saturate);
  }
  BS_INLINE void run(const uint8_t* packed, float* out) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
    __m256i codes = _mm256_cvtepu8_epi16(bytes);
    codes = _mm256_or_si256(codes, _mm256_slli_epi16(codes, 4));
    codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    const __m512i low = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(codes));
    const __m512i high = _mm512_cvtepu8_epi32(_mm256_extracti128_si256(codes, 1));
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(low, scaled));
    _mm512_storeu_ps(out + 16, _mm512_permutexvar_ps(high, scaled));
  }
  BS_INLINE void run16(const uint8_t* packed, float* out) const {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed));
    __m128i codes = _mm_cvtepu8_epi16(bytes);
    codes = _mm_or_si128(codes, _mm_slli_epi16(codes, 4));
    codes = _mm_and_si128(codes, _mm_set1_epi8(15));
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), scaled));
  }
};

// 5 bits of magnitude: two registers of values, the sign put on afterwards.
template <int ID>
struct Lookup6 {
  static constexpr bool kExists = true;
  __m512 values[2], scaled[2];

  Lookup6() {
    float table[32];
    for (uint32_t i = 0; i < 32; ++i) table[i] = value_of<ID>(i);
    for (int i = 0; i < 2; ++i) scaled[i] = values[i] = _mm512_loadu_ps(table + 16 * i);
  }
  BS_INLINE void set_scale(float scale, bool saturate) {
    for (int i = 0; i < 2; ++i) {
      scaled[i] = saturated_table(_mm512_mul_ps(values[i], _mm512_set1_ps(scale)), saturate);
    }
  }
  BS_INLINE void run(const uint8_t* packed, float* out) const {
    // Six bytes to each quarter, then eight fields of 6 bits from each.
    const __m256i spread = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 5, 5, 6, 7, 8, 9, 10, 11, 11, 11, 12, 13,
                                            14, 15, 16, 17, 17, 17, 18, 19, 20, 21, 22, 23, 23, 23);
    const __m256i fields = _mm256_set1_epi64x(0x2a241e18120c0600);
    const __m256i bytes = _mm256_maskz_loadu_epi8(0x00ffffff, packed);
    const __m256i quarters = _mm256_permutexvar_epi8(spread, bytes);
    const __m256i codes = _mm256_multishift_epi64_epi8(fields, quarters);
    store(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(codes)), out);
    store(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(codes, 1)), out + 16);
  }
  BS_INLINE void run16(const uint8_t* packed, float* out) const {
    uint8_t codes[16];
    unpack(packed, 16, 6, codes);
    store(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))), out);
  }
  BS_INLINE void store(__m512i code, float* out) const {
    const __m512 magnitude = _mm512_permutex2var_ps(scaled[0], code, scaled[1]);
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi32(code, 26), _mm512_set1_epi32(int(kSign)));
    _mm512_storeu_si512(out, _mm512_or_si512(_mm512_castps_si512(magnitude), sign));
  }
};
template <>
struct Lookup<k_fp6_e2m3> : Lookup6<k_fp6_e2m3> {};
template <>
struct Lookup<k_fp6_e3m2> : Lookup6<k_fp6_e3m2> {};

#elif defined(__AVX2__)

template <>
struct Lookup<k_fp4_e2m1> {
  static constexpr bool kExists = true;
  __m256 values, scaled;

  Lookup() {
    float table[8];
    for (uint32_t i = 0; i < 8; ++i) table[i] = value_of<k_fp4_e2m1>(i);
    values = scaled = _mm256_loadu_ps(table);
  }
  BS_INLINE void set_scale(float scale, bool saturate) {
    scaled = _mm256_mul_ps(values, _mm256_set1_ps(scale));
    // A NaN is the second operand, so it stays.
    if (saturate) scaled = _mm256_min_ps(_mm256_set1_ps(kFloatMax), scaled);
  }
  BS_INLINE void run(const uint8_t* packed, float* out) const {
    run16(packed, out);
    run16(packed + 8, out + 16);
  }
  BS_INLINE void run16(const uint8_t* packed, float* out) const {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed));
    __m128i codes = _mm_cvtepu8_epi16(bytes);
    codes = _mm_or_si128(codes, _mm_slli_epi16(codes, 4));
    codes = _mm_and_si128(codes, _mm_set1_epi8(15));
    store(_mm256_cvtepu8_epi32(codes), out);
    store(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)), out + 8);
  }
  BS_INLINE void store(__m256i code, float* out) const {
    const __m256 magnitude = _mm256_permutevar8x32_ps(scaled, code);
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32(int(kSign)));
    _mm256_storeu_ps(out, _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign)));
  }
};

#endif

template <int ID>
static void decode_packed(const Piece& p, const Numbers& numbers, const uint8_t* packed,
                          float* BS_RESTRICT out) {
  constexpr int bits = kFormats[ID].bits;
  const bool saturate = numbers.saturates;
  Lookup<ID> table;
  for_blocks(p, [&](size_t start, auto n, size_t b) BS_INLINE_LAMBDA {
    const float scale = p.params.scale[b];
    table.set_scale(scale, saturate);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) table.run(packed + (start + i) * bits / 8, out + start + i);
    if (i + 16 <= n) {
      table.run16(packed + (start + i) * bits / 8, out + start + i);
      i += 16;
    }
    if (i < n) {
      uint8_t codes[32];
      unpack(packed + (start + i) * bits / 8, n - i, bits, codes);
      for (size_t j = i; j < n; ++j) {
        out[start + j] = saturate ? decoded_float<ID, true>(codes[j - i], scale)
                                  : decoded_float<ID, false>(codes[j - i], scale);
      }
    }
  });
}

// Null where there is no such way.
static PackedKernel packed_kernel(const Numbers& numbers) {
  switch (numbers.element) {
    case k_fp4_e2m1:
      return Lookup<k_fp4_e2m1>::kExists ? decode_packed<k_fp4_e2m1> : nullptr;
    case k_fp6_e2m3:
      return Lookup<k_fp6_e2m3>::kExists ? decode_packed<k_fp6_e2m3> : nullptr;
    case k_fp6_e3m2:
      return Lookup<k_fp6_e3m2>::kExists ? decode_packed<k_fp6_e3m2> : nullptr;
    default:
      return nullptr;
  }
}
