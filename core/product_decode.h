// Codes as vectors of 64 bytes, most of them byte by byte.
// How blocks are laid out: product_decode_avx512.h. Included once per instruction set, inside its
// namespace.

static BS_INLINE F scale_e8m0(const uint8_t* p) {
  float f[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    f[i] = float_of(p[i] == 0 ? 0x00400000u : uint32_t(p[i]) << 23);
  }
  return load_f(f);
}
static BS_INLINE F scale_e4m3(const uint8_t* p) {
  float f[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    const float small = float(p[i]) * 0x1p-9f;
    f[i] = p[i] < 8 ? small : float_of((uint32_t(p[i]) << 20) + (120u << 23));
  }
  return load_f(f);
}

// The code at byte i of quad q.
template <Code C>
static BS_INLINE uint8_t code_at(const uint8_t* block, int q, int i) {
  constexpr size_t bytes = code_bytes(C);
  if constexpr (bytes == 256) {
    return uint8_t(block[64 * (q & 3) + i] >> (q < 4 ? 0 : 4) & 15);
  } else if constexpr (bytes == 384) {
    const uint8_t* at = block + 192 * (q >> 2) + i;
    if ((q & 3) == 3) return uint8_t(at[0] >> 6 | at[64] >> 6 << 2 | at[128] >> 6 << 4);
    return at[64 * (q & 3)] & 63;
  } else {
    return block[64 * q + i];
  }
}

template <Code C>
static constexpr int integer_of(int code) {
  return C == Code::kFp4    ? fp4_integer(code & 15)
         : C == Code::kE2m3 ? e2m3_integer(code)
         : C == Code::kE3m2 ? e3m2_integer(code)
                            : code - code_offset(C);
}

template <Code C>
struct PlainTables {
  static constexpr int kCodes = int(code_bytes(C) == 256 ? 16 : code_bytes(C) == 384 ? 64 : 256);
  uint8_t byte[kCodes];
  int16_t integer[kCodes];
  uint16_t real[kCodes];
  constexpr PlainTables() : byte(), integer(), real() {
    for (int i = 0; i < kCodes; ++i) {
      if (C != Code::kE4m3 && C != Code::kE5m2) {
        integer[i] = int16_t(integer_of<C>(i));
        byte[i] = uint8_t(integer[i] + code_offset(C) - kBias);
      }
      if (!is_integer(C)) real[i] = uint16_t(std::bit_cast<uint32_t>(float_value(C, i)) >> 16);
    }
  }
};
template <Code C>
static constexpr PlainTables<C> kPlain{};

template <Code C>
struct Bytes {
  BS_INLINE I operator()(const uint8_t* block, int q) const {
    if constexpr (C == Code::kInt8) return load_i(block + 64 * q);  // dot8 knows
#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
    if constexpr (code_bytes(C) == 256) {
      return look_up_nibbles(load_i(block + 64 * (q & 3)), q >= 4, kPlain<C>.byte);
    }
#endif
    uint8_t bytes[64];
    for (int i = 0; i < 64; ++i) bytes[i] = kPlain<C>.byte[code_at<C>(block, q, i)];
    return load_i(bytes);
  }
};

template <Code C>
struct Shorts {
  BS_INLINE I operator()(const uint8_t* block, int q, int pair) const {
    int16_t words[32];
    for (int i = 0; i < 32; ++i) {
      words[i] = kPlain<C>.integer[code_at<C>(block, q, 4 * (i / 2) + pair + 2 * (i & 1))];
    }
    return load_i(words);
  }
};

template <Code C>
struct Pairs {
  BS_INLINE I operator()(const uint8_t* block, int q, int pair, const I& zeros) const {
    uint16_t words[32];
    int32_t zero[kLanes];
    if constexpr (is_integer(C)) store_i(zero, zeros);
    for (int i = 0; i < 32; ++i) {
      const uint8_t code = code_at<C>(block, q, 4 * (i / 2) + pair + 2 * (i & 1));
      if constexpr (is_integer(C)) {
        words[i] = uint16_t(bits_of(float(int32_t(code) - zero[i / 2])) >> 16);
      } else {
        words[i] = kPlain<C>.real[code];
      }
    }
    return load_i(words);
  }
};

// Element k of quad q as float32.
template <Code C>
static BS_INLINE F integer_at(const uint8_t* block, int q, int k, const I& zeros) {
  int32_t values[kLanes];
  store_i(values, zeros);
  for (int i = 0; i < int(kLanes); ++i) {
    values[i] = int32_t(code_at<C>(block, q, 4 * i + k)) - values[i];
  }
  return to_f(load_i(values));
}
