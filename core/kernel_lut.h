// Packed 4- and 6-bit codes to float32 by table: a table of the element's values, multiplied by the
// scale once a block, and a permutation that looks up 16 codes at a time. Runs of 32 codes; the
// rest and other processors take the way of kernel_decode.h. Included once per instruction set,
// inside its namespace.

// 32 codes at `packed`, which start on a byte.
template <int ID>
struct Lookup {
  static constexpr bool kExists = false;
  explicit Lookup() {}
  void set_scale(float, bool) {}
  void run(const uint8_t*, float*) const {}
  void run16(const uint8_t*, float*) const {}
};

static BS_INLINE uint32_t load_u32(const uint8_t* p) {
  uint32_t w;
  memcpy(&w, p, 4);
  return w;
}

// A permutation looks at the low bits of an index alone: codes are shifted down, never masked.
#if defined(__AVX512BW__)

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
    values = scaled = _mm512_loadu_ps(table);
  }
  BS_INLINE void set_scale(float scale, bool saturate) {
    scaled = saturated_table(_mm512_mul_ps(values, _mm512_set1_ps(scale)), saturate);
  }
  BS_INLINE void run(const uint8_t* packed, float* out) const {
    run16(packed, out);
    run16(packed + 8, out + 16);
  }
  BS_INLINE void run16(const uint8_t* packed, float* out) const {
    const __m512i shifts =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    __m512i words = _mm512_set1_epi32(int32_t(load_u32(packed)));
    words = _mm512_mask_set1_epi32(words, 0xff00, int32_t(load_u32(packed + 4)));
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), scaled));
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
    const auto* at = reinterpret_cast<const __m128i*>(packed);
    store(_mm_loadu_si128(at), out);
    // The other 12 bytes, without reading beyond them.
    const auto* end = reinterpret_cast<const __m128i*>(packed + 8);
    store(_mm_srli_si128(_mm_loadu_si128(end), 4), out + 16);
  }
  BS_INLINE void run16(const uint8_t* packed, float* out) const {
    store(_mm_maskz_loadu_epi8(0x0fff, packed), out);
  }
  // 16 codes in the low 12 bytes.
  BS_INLINE void store(__m128i bytes, float* out) const {
    // Three bytes, which are four codes, to each number of a quarter.
    const __m512i triples =
        _mm512_set_epi32(0x800b0a09, 0x800b0a09, 0x800b0a09, 0x800b0a09, 0x80080706, 0x80080706,
                         0x80080706, 0x80080706, 0x80050403, 0x80050403, 0x80050403, 0x80050403,
                         0x80020100, 0x80020100, 0x80020100, 0x80020100);
    const __m512i shifts = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 6, 12, 18));
    const __m512i words = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), triples);
    const __m512i code = _mm512_srlv_epi32(words, shifts);
    const __m512 magnitude = _mm512_permutex2var_ps(scaled[0], code, scaled[1]);
    const __m512i sign =
        _mm512_and_si512(_mm512_slli_epi32(code, 26), _mm512_set1_epi32(int(kSign)));
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
    store(load_u32(packed), out);
    store(load_u32(packed + 4), out + 8);
  }
  BS_INLINE void store(uint32_t codes, float* out) const {
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(int32_t(codes)), shifts);
    const __m256 magnitude = _mm256_permutevar8x32_ps(scaled, code);
    const __m256i sign =
        _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32(int(kSign)));
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
