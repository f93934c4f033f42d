// Codes in registers. A quad is four elements of K of 16 columns: 64 bytes once decoded to bytes.
// Of a block of eight quads, codes of 4 bits have quad q in the low halves of bytes of vector q,
// and quad 4 + q in the high ones; codes of 6 bits have quads 0, 1, 2 and 4, 5, 6 in the low six
// bits of six vectors, and of quads 3 and 7 two bits on top of each of three. Included once per
// instruction set, inside its namespace.

// ---- bytes, unsigned: value · 2^m + offset

struct Table {
  I low;  // 64 bytes
  BS_INLINE explicit Table(const int8_t* values) : low(load_i(values)) {}
};

template <Code C>
struct ByteTable {
  int8_t entry[64];
  constexpr ByteTable() : entry() {
    for (int i = 0; i < 64; ++i) {
      entry[i] = int8_t(C == Code::kFp4 ? fp4_integer(i & 15) + 12 : e2m3_integer(i) + 60);
    }
  }
};
template <Code C>
alignas(64) static constexpr ByteTable<C> kBytes{};

#if defined(__AVX512VBMI__)
// By the low six bits of bytes.
static BS_INLINE I look_up(I at, I table) { return _mm512_permutexvar_epi8(at, table); }
template <bool k64>
static BS_INLINE I look_up_bytes(I at, I table) {
  return look_up(at, table);
}
#else
template <bool k64>
static BS_INLINE I look_up_bytes(I at, I table) {
  const I nibble = _mm512_and_si512(at, _mm512_set1_epi8(15));
  const auto quarter = [&](int i) {
    const I part = i == 0   ? _mm512_shuffle_i32x4(table, table, 0x00)
                   : i == 1 ? _mm512_shuffle_i32x4(table, table, 0x55)
                   : i == 2 ? _mm512_shuffle_i32x4(table, table, 0xaa)
                            : _mm512_shuffle_i32x4(table, table, 0xff);
    return _mm512_shuffle_epi8(part, nibble);
  };
  if constexpr (!k64) return quarter(0);
  const __mmask64 upper = _mm512_test_epi8_mask(at, _mm512_set1_epi8(16));
  const __mmask64 top = _mm512_test_epi8_mask(at, _mm512_set1_epi8(32));
  return _mm512_mask_blend_epi8(top, _mm512_mask_blend_epi8(upper, quarter(0), quarter(1)),
                                _mm512_mask_blend_epi8(upper, quarter(2), quarter(3)));
}
#endif

// The fourth quad of six-bit codes from the top bits of three vectors.
static BS_INLINE I fourth(const uint8_t* p) {
  const I a = _mm512_and_si512(_mm512_srli_epi16(load_i(p), 6), _mm512_set1_epi8(0x03));
  const I b = _mm512_srli_epi16(load_i(p + 64), 4), c = _mm512_srli_epi16(load_i(p + 128), 2);
  constexpr int or_and = 0xf8;  // a | (b & c)
  const I ab = _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(0x0c), or_and);
  return _mm512_ternarylogic_epi32(ab, c, _mm512_set1_epi8(0x30), or_and);
}

// Codes of quad q in the low bits of bytes, whatever is above.
template <Code C>
static BS_INLINE I quad(const uint8_t* block, int q) {
  constexpr size_t bytes = code_bytes(C);
  if constexpr (bytes == 256) {
    const I v = load_i(block + 64 * (q & 3));
    return q < 4 ? v : _mm512_srli_epi16(v, 4);
  } else if constexpr (bytes == 384) {
    const uint8_t* half = block + 192 * (q >> 2);
    return (q & 3) == 3 ? fourth(half) : load_i(half + 64 * (q & 3));
  } else {
    return load_i(block + 64 * q);
  }
}

template <Code C>
struct Bytes {
  I table;
  BS_INLINE Bytes() : table(zero_i()) {
    if constexpr (C == Code::kFp4 || C == Code::kE2m3) table = load_i(kBytes<C>.entry);
  }
  BS_INLINE I operator()(const uint8_t* block, int q) const {
    const I v = quad<C>(block, q);
    if constexpr (C == Code::kInt8) return v;
    if constexpr (C == Code::kInt4) return _mm512_and_si512(v, _mm512_set1_epi8(15));
    return look_up_bytes<C == Code::kE2m3>(v, table);
  }
};

// ---- words, pairs of elements: (0, 2) and (1, 3) of a quad, as int16 or bfloat16

template <Code C, bool kInteger>
struct WordTable {
  uint16_t entry[64];
  constexpr WordTable() : entry() {
    for (int i = 0; i < 64; ++i) {
      if (kInteger) {
        entry[i] = uint16_t(C == Code::kFp4    ? fp4_integer(i & 15)
                            : C == Code::kE2m3 ? e2m3_integer(i)
                                               : e3m2_integer(i));
      } else {
        entry[i] = uint16_t(std::bit_cast<uint32_t>(float_value(C, i)) >> 16);
      }
    }
  }
};
template <Code C, bool kInteger>
alignas(64) static constexpr WordTable<C, kInteger> kWords{};

template <Code C, bool kInteger>
struct WordLookup {
  I low, high;
  BS_INLINE WordLookup()
      : low(load_i(kWords<C, kInteger>.entry)), high(load_i(kWords<C, kInteger>.entry + 32)) {}
  BS_INLINE I operator()(I at) const {
    if constexpr (C == Code::kFp4) return _mm512_permutexvar_epi16(at, low);
    return _mm512_permutex2var_epi16(low, at, high);
  }
};

// A quad's bytes of pair 0 or 1 in the low bytes of words.
static BS_INLINE I pair_of(I quad, int pair) { return pair ? _mm512_srli_epi16(quad, 8) : quad; }

// int16: value · 2^m.
template <Code C>
struct Shorts {
  WordLookup<C, true> words;
  BS_INLINE I operator()(const uint8_t* block, int q, int pair) const {
    return words(pair_of(quad<C>(block, q), pair));
  }
};
template <>
struct Shorts<Code::kInt8> {
  BS_INLINE I operator()(const uint8_t* block, int q, int pair) const {
    const I v = pair_of(quad<Code::kInt8>(block, q), pair);
    return _mm512_sub_epi16(_mm512_and_si512(v, _mm512_set1_epi16(255)), _mm512_set1_epi16(128));
  }
};

// bfloat16: the element without its scale. `zeros`: of integers, zero points as int32.
template <Code C>
struct Pairs {
  WordLookup<C, false> words;
  BS_INLINE I operator()(const uint8_t* block, int q, int pair, I) const {
    return words(pair_of(quad<C>(block, q), pair));
  }
};

// A float8 by its exponent's place; what is subnormal in it by table; the rest of E5M2's top binade
// is Inf and NaN.
template <int kMantissa, int kBiasOf>
struct Float8Pairs {
  I subnormal;
  BS_INLINE Float8Pairs() {
    alignas(64) uint16_t entry[32];
    for (int i = 0; i < 32; ++i) {
      const float value = float(i & ((1 << kMantissa) - 1)) * 0x1p-9f;
      entry[i] = uint16_t(bits_of(kMantissa == 3 ? value : value * 0x1p-7f) >> 16);
    }
    subnormal = load_i(entry);
  }
  BS_INLINE I operator()(const uint8_t* block, int q, int pair, I) const {
    const I v = load_i(block + 64 * q);
    const I top = pair ? v : _mm512_slli_epi16(v, 8);  // the code in the high byte
    const I code = _mm512_and_si512(_mm512_srli_epi16(top, 8), _mm512_set1_epi16(127));
    I bits = _mm512_add_epi16(_mm512_slli_epi16(code, 7 - kMantissa),
                              _mm512_set1_epi16(int16_t((127 - kBiasOf) << 7)));
    const __mmask32 small = _mm512_cmplt_epi16_mask(code, _mm512_set1_epi16(1 << kMantissa));
    bits = _mm512_mask_permutexvar_epi16(bits, small, code, subnormal);
    if constexpr (kMantissa == 2) {
      const __mmask32 special = _mm512_cmpge_epi16_mask(code, _mm512_set1_epi16(31 << 2));
      bits = _mm512_mask_or_epi32_16(bits, special);
    }
    constexpr int or_and = 0xf8;
    return _mm512_ternarylogic_epi32(bits, top, _mm512_set1_epi16(int16_t(0x8000)), or_and);
  }

 private:
  static BS_INLINE I _mm512_mask_or_epi32_16(I bits, __mmask32 special) {
    return _mm512_mask_mov_epi16(bits, special, _mm512_or_si512(bits, _mm512_set1_epi16(0x7f80)));
  }
};
template <>
struct Pairs<Code::kE4m3> : Float8Pairs<3, 7> {};
template <>
struct Pairs<Code::kE5m2> : Float8Pairs<2, 15> {};

// Integers less their zero point: at most 8 significant bits, exact in bfloat16.
template <Code C>
struct IntegerPairs {
  BS_INLINE I operator()(const uint8_t* block, int q, int pair, I zeros) const {
    const I mask = splat_i(C == Code::kInt4 ? 15 : 255);
    const I v = quad<C>(block, q);
    const I first = _mm512_and_si512(pair ? _mm512_srli_epi32(v, 8) : v, mask);
    const I second = _mm512_and_si512(_mm512_srli_epi32(v, pair ? 24 : 16), mask);
    const I low = _mm512_castps_si512(to_f(_mm512_sub_epi32(first, zeros)));
    const I high = _mm512_castps_si512(to_f(_mm512_sub_epi32(second, zeros)));
    return _mm512_or_si512(_mm512_srli_epi32(low, 16), high);
  }
};
template <>
struct Pairs<Code::kInt4> : IntegerPairs<Code::kInt4> {};
template <>
struct Pairs<Code::kInt8> : IntegerPairs<Code::kInt8> {};

// The two elements of a pair as float32.
static BS_INLINE F first_of(I pair) { return bits_f(_mm512_slli_epi32(pair, 16)); }
static BS_INLINE F second_of(I pair) {
  return bits_f(_mm512_and_si512(pair, splat_i(int32_t(0xffff0000))));
}

// Element k of quad q as float32: on top of 2^23, which is then taken away with the zero point.
template <Code C>
static BS_INLINE F integer_at(const uint8_t* block, int q, int k, I zeros) {
  const int shift = 8 * k + (C == Code::kInt4 && q >= 4 ? 4 : 0);
  const I v = load_i(block + 64 * (C == Code::kInt4 ? q & 3 : q));
  constexpr int and_or = 0xea;  // (a & b) | c
  const I anchor = splat_i(0x4b000000);
  const I bits = _mm512_ternarylogic_epi32(_mm512_srli_epi32(v, shift),
                                           splat_i(C == Code::kInt4 ? 15 : 255), anchor, and_or);
  return subtract(bits_f(bits), bits_f(add(zeros, anchor)));
}
