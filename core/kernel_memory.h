// Rows in and out of float32, and codes in and out of bytes.
// Included once per instruction set, inside its namespace.

static void load_f32(const void* from, ptrdiff_t stride, float* to, size_t n) {
  const auto* x = static_cast<const float*>(from);
  if (stride == 1) {
    memcpy(to, x, n * sizeof(float));
  } else {
    for (size_t i = 0; i < n; ++i) to[i] = x[ptrdiff_t(i) * stride];
  }
}

static void load_bf16(const void* from, ptrdiff_t stride, float* to, size_t n) {
  const auto* x = static_cast<const uint16_t*>(from);
  if (stride == 1) {
    for (size_t i = 0; i < n; ++i) to[i] = bfloat_to_float(x[i]);
  } else {
    for (size_t i = 0; i < n; ++i) to[i] = bfloat_to_float(x[ptrdiff_t(i) * stride]);
  }
}

static void load_f16(const void* from, ptrdiff_t stride, float* to, size_t n) {
  const auto* x = static_cast<const uint16_t*>(from);
  size_t i = 0;
  if (stride == 1) {
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
    }
#endif
    for (; i < n; ++i) to[i] = half_to_float(x[i]);
  } else {
    for (; i < n; ++i) to[i] = half_to_float(x[ptrdiff_t(i) * stride]);
  }
}

static void store_f32(const float* from, void* to, ptrdiff_t stride, size_t n) {
  auto* y = static_cast<float*>(to);
  if (stride == 1) {
    memcpy(y, from, n * sizeof(float));
  } else {
    for (size_t i = 0; i < n; ++i) y[ptrdiff_t(i) * stride] = from[i];
  }
}

static void store_bf16(const float* from, void* to, ptrdiff_t stride, size_t n) {
  auto* y = static_cast<uint16_t*>(to);
  if (stride == 1) {
    for (size_t i = 0; i < n; ++i) y[i] = float_to_bfloat(from[i]);
  } else {
    for (size_t i = 0; i < n; ++i) y[ptrdiff_t(i) * stride] = float_to_bfloat(from[i]);
  }
}

static void store_f16(const float* from, void* to, ptrdiff_t stride, size_t n) {
  auto* y = static_cast<uint16_t*>(to);
  if (stride == 1) {
    size_t i = 0;
#if defined(__F16C__)
    const __m256 top = _mm256_set1_ps(65504.0f), sign = _mm256_set1_ps(-0.0f);
    const __m256 infinity = _mm256_set1_ps(float_of(kInfBits));
    for (; i + 8 <= n; i += 8) {
      const __m256 x = _mm256_loadu_ps(from + i);
      const __m256 magnitude = _mm256_andnot_ps(sign, x);
      // Beyond the range but finite; false for NaN.
      const __m256 beyond = _mm256_and_ps(_mm256_cmp_ps(magnitude, top, _CMP_GT_OQ),
                                          _mm256_cmp_ps(magnitude, infinity, _CMP_LT_OQ));
      const __m256 largest = _mm256_or_ps(top, _mm256_and_ps(sign, x));
      const __m256 kept = _mm256_blendv_ps(x, largest, beyond);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                       _mm256_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
#endif
    for (; i < n; ++i) y[i] = float_to_half(from[i]);
  } else {
    for (size_t i = 0; i < n; ++i) y[ptrdiff_t(i) * stride] = float_to_half(from[i]);
  }
}

static void stream_f32(const float* from, float* to, size_t n) {
  size_t i = 0;
#if defined(__AVX512F__)
  while (i < n && (reinterpret_cast<uintptr_t>(to + i) & 63)) to[i] = from[i], ++i;
  for (; i + 16 <= n; i += 16) _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
#elif defined(__AVX__)
  while (i < n && (reinterpret_cast<uintptr_t>(to + i) & 31)) to[i] = from[i], ++i;
  for (; i + 8 <= n; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
#elif defined(__SSE2__) || defined(_M_X64)
  while (i < n && (reinterpret_cast<uintptr_t>(to + i) & 15)) to[i] = from[i], ++i;
  for (; i + 4 <= n; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#endif
  for (; i < n; ++i) to[i] = from[i];
}

// Codes, packed as one stream of bits, the lowest first.

static inline uint64_t load_u64(const uint8_t* p) {
  uint64_t w;
  memcpy(&w, p, 8);
  return w;
}

// Any width below 8: a little-endian bit stream.
static inline void pack_bits(const uint8_t* codes, size_t n, int bits, uint8_t* out) {
  uint64_t stream = 0;
  int held = 0;
  const uint32_t mask = (1u << bits) - 1;
  for (size_t i = 0; i < n; ++i) {
    stream |= uint64_t(codes[i] & mask) << held;
    held += bits;
    if (held >= 8) {
      *out++ = uint8_t(stream);
      stream >>= 8;
      held -= 8;
    }
  }
  if (held > 0) *out = uint8_t(stream);
}

static inline void unpack_bits(const uint8_t* packed, size_t n, int bits, uint8_t* codes) {
  uint64_t stream = 0;
  int held = 0;
  const uint32_t mask = (1u << bits) - 1;
  for (size_t i = 0; i < n; ++i) {
    if (held < bits) {
      stream |= uint64_t(*packed++) << held;
      held += 8;
    }
    codes[i] = uint8_t(stream & mask);
    stream >>= bits;
    held -= bits;
  }
}

#if !defined(__AVX2__)
// Eight bytes of 6 bits ↔ 48 bits: pairs, then quads, then both halves.
static inline uint64_t squeeze6(uint64_t w) {
  w &= 0x3f3f3f3f3f3f3f3f;
  w = (w & 0x003f003f003f003f) | ((w & 0x3f003f003f003f00) >> 2);
  w = (w & 0x00000fff00000fff) | ((w & 0x0fff00000fff0000) >> 4);
  return (w & 0x0000000000ffffff) | ((w & 0x00ffffff00000000) >> 8);
}
static inline uint64_t spread6(uint64_t w) {
  w = (w & 0x0000000000ffffff) | ((w & 0x0000ffffff000000) << 8);
  w = (w & 0x00000fff00000fff) | ((w & 0x00fff00000fff000) << 4);
  return (w & 0x003f003f003f003f) | ((w & 0x0fc00fc00fc00fc0) << 2);
}
#endif

// 32 codes of 6 bits ↔ 24 bytes.
#if defined(__AVX2__)
static BS_INLINE void pack_32_of_6(const uint8_t* codes, uint8_t* out) {
  __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  w = _mm256_and_si256(w, _mm256_set1_epi8(0x3f));
  w = _mm256_maddubs_epi16(w, _mm256_set1_epi16(0x4001));   // c0 + 64 c1
  w = _mm256_madd_epi16(w, _mm256_set1_epi32(0x10000001));  // and so on: 24 bits
  w = _mm256_shuffle_epi8(w, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)));
  w = _mm256_permutevar8x32_epi32(w, _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(w));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 16), _mm256_extracti128_si256(w, 1));
}
static BS_INLINE void unpack_32_of_6(const uint8_t* packed, uint8_t* codes) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + 8));
  const __m256i triples =
      _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,  //
                       4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1);
  const __m256i w = _mm256_shuffle_epi8(_mm256_set_m128i(high, low), triples);
  auto field = [](__m256i moved, int mask) {
    return _mm256_and_si256(moved, _mm256_set1_epi32(mask));
  };
  const __m256i even = _mm256_or_si256(field(w, 0x3f), field(_mm256_slli_epi32(w, 4), 0x3f0000));
  const __m256i odd = _mm256_or_si256(field(_mm256_slli_epi32(w, 2), 0x3f00),
                                      field(_mm256_slli_epi32(w, 6), 0x3f000000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_or_si256(even, odd));
}
#else
static BS_INLINE void pack_32_of_6(const uint8_t* codes, uint8_t* out) {
  for (int i = 0; i < 4; ++i) {
    const uint64_t w = squeeze6(load_u64(codes + 8 * i));
    memcpy(out + 6 * i, &w, 6);
  }
}
static BS_INLINE void unpack_32_of_6(const uint8_t* packed, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) {
    uint64_t w = 0;
    memcpy(&w, packed + 6 * i, 6);
    w = spread6(w);
    memcpy(codes + 8 * i, &w, 8);
  }
}
#endif

static void pack(const uint8_t* codes, size_t n, int bits, uint8_t* out) {
  size_t i = 0;
  if (bits == 8) {
    memcpy(out, codes, n);
    return;
  }
  if (bits == 4) {
    const size_t pairs = n / 2;
    for (size_t j = 0; j < pairs; ++j) {
      uint16_t w;
      memcpy(&w, codes + 2 * j, 2);
      out[j] = uint8_t((w & 15) | ((w >> 4) & 0xf0));
    }
    i = pairs * 2;
  } else if (bits == 6) {
    for (; i + 32 <= n; i += 32) pack_32_of_6(codes + i, out + i / 8 * 6);
  }
  pack_bits(codes + i, n - i, bits, out + i * size_t(bits) / 8);
}

static void unpack(const uint8_t* packed, size_t n, int bits, uint8_t* codes) {
  size_t i = 0;
  if (bits == 8) {
    memcpy(codes, packed, n);
    return;
  }
  if (bits == 4) {
    const size_t pairs = n / 2;
    for (size_t j = 0; j < pairs; ++j) {
      const auto w = uint16_t(packed[j]);
      const auto spread = uint16_t((w & 15) | ((w & 0xf0) << 4));
      memcpy(codes + 2 * j, &spread, 2);
    }
    i = pairs * 2;
  } else if (bits == 6) {
    for (; i + 32 <= n; i += 32) unpack_32_of_6(packed + i / 8 * 6, codes + i);
  }
  unpack_bits(packed + i * size_t(bits) / 8, n - i, bits, codes + i);
}
