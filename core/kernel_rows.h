// Rows of MX blocks from memory to memory, 16 blocks at a time: their maxima are found side by
// side, so that what a block costs beside its elements is shared by 16. AVX-512. Included once per
// instruction set, inside its namespace.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

// A block of 32 of each type of tensor: two vectors of floats, in any order, and back. `greatest`:
// numbers that order as the magnitudes do, whose maximum `magnitude` makes float32 of.
template <TensorType T>
struct Elements;

template <>
struct Elements<TensorType::kF32> {
  using Type = float;
  static BS_INLINE __m512i greatest(const float* x) {
    const __m512i m = all_of(int32_t(kMagnitude));
    return _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x), m),
                            _mm512_and_si512(_mm512_loadu_si512(x + 16), m));
  }
  static BS_INLINE __m512i magnitude(__m512i m) { return m; }
  static BS_INLINE void load(const float* x, __m512& a, __m512& b) {
    a = _mm512_loadu_ps(x);
    b = _mm512_loadu_ps(x + 16);
  }
  static BS_INLINE void store(float* y, __m512 a, __m512 b) {
    _mm512_storeu_ps(y, a);
    _mm512_storeu_ps(y + 16, b);
  }
};

// Magnitudes of 16 bits: the upper half decides, the lower one is cut off at the end.
static BS_INLINE __m512i greatest_of_halves(const uint16_t* x) {
  const __m512i m = _mm512_and_si512(_mm512_loadu_si512(x), all_of(0x7fff7fff));
  return _mm512_max_epi32(m, _mm512_slli_epi32(m, 16));
}

template <>
struct Elements<TensorType::kBf16> {
  using Type = uint16_t;
  static BS_INLINE __m512i greatest(const uint16_t* x) { return greatest_of_halves(x); }
  static BS_INLINE __m512i magnitude(__m512i m) {
    return _mm512_and_si512(m, all_of(int32_t(0xffff0000)));
  }
  // Even elements, odd elements.
  static BS_INLINE void load(const uint16_t* x, __m512& a, __m512& b) {
    const __m512i both = _mm512_loadu_si512(x);
    a = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    b = _mm512_castsi512_ps(_mm512_and_si512(both, all_of(int32_t(0xffff0000))));
  }
  // Results have few bits: nothing is cut off.
  static BS_INLINE void store(uint16_t* y, __m512 a, __m512 b) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    _mm512_storeu_si512(y, _mm512_or_si512(low, _mm512_castps_si512(b)));
  }
};

template <>
struct Elements<TensorType::kF16> {
  using Type = uint16_t;
  static BS_INLINE __m512i greatest(const uint16_t* x) { return greatest_of_halves(x); }
  static BS_INLINE __m512i magnitude(__m512i m) {
    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(m, 16));
    return _mm512_castps_si512(_mm512_cvtph_ps(halves));
  }
  static BS_INLINE void load(const uint16_t* x, __m512& a, __m512& b) {
    a = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    b = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16)));
  }
  static BS_INLINE void store(uint16_t* y, __m512 a, __m512 b) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    auto* to = reinterpret_cast<__m256i*>(y);
    _mm256_storeu_si256(to, _mm512_cvtps_ph(a, nearest));
    _mm256_storeu_si256(to + 1, _mm512_cvtps_ph(b, nearest));
  }
};

// Lane i of the result: the greatest of vector i.
static BS_INLINE __m512i greatest_of_each(const __m512i v[kRowGroup]) {
  __m512i pairs[8], quads[4], halves[2];
  for (int i = 0; i < 8; ++i) {
    pairs[i] = _mm512_max_epi32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                                _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    quads[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                                _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  }
  for (int i = 0; i < 2; ++i) {
    halves[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(quads[2 * i], quads[2 * i + 1], 0x88),
                                 _mm512_shuffle_i32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
  }
  return _mm512_max_epi32(_mm512_shuffle_i32x4(halves[0], halves[1], 0x88),
                          _mm512_shuffle_i32x4(halves[0], halves[1], 0xdd));
}

// A group is read in one go: memory is asked for what comes after it while its results are made.
static BS_INLINE void ahead(const void* x, size_t bytes) {
  constexpr size_t distance = 8192;
  const auto* at = static_cast<const char*>(x) + distance;
  for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(at + i, _MM_HINT_T0);
}

// Those of a group, to be taken one by one.
struct InTurn {
  alignas(64) int32_t limit[kRowGroup];
  alignas(64) int32_t least[kRowGroup];
  alignas(64) int32_t kept[kRowGroup];

  BS_INLINE explicit InTurn(const Grids& grids) {
    _mm512_store_si512(limit, grids.limit);
    _mm512_store_si512(least, grids.least);
    _mm512_store_si512(kept, grids.kept);
  }
  BS_INLINE Grid operator[](size_t b) const {
    return {all_of(limit[b]), all_of(least[b]), all_of(kept[b])};
  }
};

// A group of blocks of some length: its maxima, and its elements on the grids G.
template <TensorType T, size_t kLength>
struct Group;

template <TensorType T>
struct Group<T, 32> {
  using Type = typename Elements<T>::Type;
  static BS_INLINE __m512i maxima(const Type* x) {
    __m512i v[kRowGroup];
    for (size_t b = 0; b < kRowGroup; ++b) v[b] = Elements<T>::greatest(x + b * 32);
    return Elements<T>::magnitude(greatest_of_each(v));
  }
  template <class G>
  static BS_INLINE void round(const Type* x, const Grids& grids, const GridRule& rule, Type* y) {
    const InTurn each(grids);
    for (size_t b = 0; b < kRowGroup; ++b, x += 32, y += 32) {
      const G grid(each[b], rule);
      __m512 low, high;
      Elements<T>::load(x, low, high);
      ahead(x, 32 * sizeof(Type));
      Elements<T>::store(y, _mm512_castsi512_ps(grid(low)), _mm512_castsi512_ps(grid(high)));
    }
  }
};

static BS_INLINE __m512i magnitudes(const float* x) {
  return _mm512_and_si512(_mm512_loadu_si512(x), all_of(int32_t(kMagnitude)));
}

template <>
struct Group<TensorType::kF32, 16> {
  static BS_INLINE __m512i maxima(const float* x) {
    __m512i v[kRowGroup];
    for (size_t b = 0; b < kRowGroup; ++b) v[b] = magnitudes(x + b * 16);
    return greatest_of_each(v);
  }
  template <class G>
  static BS_INLINE void round(const float* x, const Grids& grids, const GridRule& rule, float* y) {
    const InTurn each(grids);
    for (size_t b = 0; b < kRowGroup; ++b, x += 16, y += 16) {
      const G grid(each[b], rule);
      const __m512i r = grid(_mm512_loadu_ps(x));
      ahead(x, 64);
      _mm512_storeu_si512(y, r);
    }
  }
};

// Vector i holds blocks 2i and 2i + 1, whose lanes in the maxima are these and four further on.
template <>
struct Group<TensorType::kF32, 8> {
  static constexpr int kLanes[8] = {0, 1, 2, 3, 8, 9, 10, 11};
  static BS_INLINE __m512i maxima(const float* x) {
    __m512i pairs[4], quads[2];
    for (int i = 0; i < 4; ++i) {
      const __m512i a = magnitudes(x + i * 32), b = magnitudes(x + i * 32 + 16);
      pairs[i] = _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
    for (int i = 0; i < 2; ++i) {
      quads[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                                  _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
    }
    return _mm512_max_epi32(_mm512_shuffle_i32x4(quads[0], quads[1], 0x88),
                            _mm512_shuffle_i32x4(quads[0], quads[1], 0xdd));
  }
  template <class G>
  static BS_INLINE void round(const float* x, const Grids& grids, const GridRule& rule, float* y) {
    const __m512i halves = _mm512_inserti64x4(all_of(0), _mm256_set1_epi32(4), 1);
    for (int i = 0; i < 8; ++i, x += 16, y += 16) {
      const __m512i lanes = _mm512_add_epi32(halves, all_of(kLanes[i]));
      auto spread = [&](__m512i of) { return _mm512_permutexvar_epi32(lanes, of); };
      const G grid({spread(grids.limit), spread(grids.least), spread(grids.kept)}, rule);
      const __m512i r = grid(_mm512_loadu_ps(x));
      ahead(x, 64);
      _mm512_storeu_si512(y, r);
    }
  }
};

// Calls group(x, y) for group after group until one returns false; the last one, of fewer blocks,
// with zeros behind them. How many blocks are done.
template <size_t kLength, class In, class Out, class Body>
static BS_INLINE size_t for_groups(const In* x, size_t blocks, Out* y, Body group) {
  constexpr size_t size = kRowGroup * kLength;
  size_t done = 0;
  for (; done + kRowGroup <= blocks; done += kRowGroup, x += size, y += size) {
    if (!group(x, y)) return done;
  }
  if (done == blocks) return done;
  const size_t rest = (blocks - done) * kLength;
  In from[size] = {};
  Out to[size];
  memcpy(from, x, rest * sizeof(In));
  if (!group(from, to)) return done;
  memcpy(y, to, rest * sizeof(Out));
  return blocks;
}

// y may be x.
template <class E, TensorType T, Way kWay, size_t kLength, class G = OnGrid<E, kWay>>
static size_t row_fake(const void* from, size_t blocks, const Numbers& numbers, void* to) {
  using Type = typename Elements<T>::Type;
  using Blocks = Group<T, kLength>;
  const GridRule rule = grid_rule_of<E>(numbers, T);
  return for_groups<kLength>(static_cast<const Type*>(from), blocks, static_cast<Type*>(to),
                             [&](const Type* x, Type* y) BS_INLINE_LAMBDA {
                               const Grids grids(Blocks::maxima(x), rule);
                               if (grids.ordinary) Blocks::template round<G>(x, grids, rule, y);
                               return grids.ordinary;
                             });
}

// 32 codes, of vectors in the order in which Elements gives them.
template <TensorType T>
static BS_INLINE void store_codes(__m512i low, __m512i high, uint8_t* codes) {
  auto* to = reinterpret_cast<__m128i*>(codes);
  if constexpr (T == TensorType::kBf16) {
    const __m512i pairs =
        _mm512_or_si512(_mm512_and_si512(low, all_of(0xff)), _mm512_slli_epi32(high, 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(pairs));
  } else {
    _mm_storeu_si128(to, _mm512_cvtepi32_epi8(low));
    _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(high));
  }
}

template <class E, TensorType T>
static size_t row_code(const void* from, size_t blocks, const Numbers& numbers,
                       uint8_t* BS_RESTRICT codes, uint8_t* BS_RESTRICT scales) {
  using Type = typename Elements<T>::Type;
  const GridRule rule = grid_rule_of<E>(numbers, TensorType::kF32);  // codes fit any range
  const auto* last = scales + blocks;
  return for_groups<32>(static_cast<const Type*>(from), blocks, codes,
                        [&](const Type* x, uint8_t* y) BS_INLINE_LAMBDA {
                          const Grids grids(Group<T, 32>::maxima(x), rule);
                          if (!grids.ordinary) return false;
                          const size_t n =
                              size_t(last - scales) < kRowGroup ? size_t(last - scales) : kRowGroup;
                          _mm_mask_storeu_epi8(scales, __mmask16((1u << n) - 1), grids.codes());
                          scales += n;
                          const InTurn each(grids);
                          for (size_t b = 0; b < kRowGroup; ++b, x += 32, y += 32) {
                            const OnGrid<E, Way::kPlain, true> grid(each[b], rule);
                            __m512 low, high;
                            Elements<T>::load(x, low, high);
                            ahead(x, 32 * sizeof(Type));
                            store_codes<T>(grid(low), grid(high), y);
                          }
                          return true;
                        });
}

template <class E, Way kWay>
static RowFakeKernel row_fake_of(TensorType type, size_t length) {
  constexpr TensorType f32 = TensorType::kF32, bf16 = TensorType::kBf16, f16 = TensorType::kF16;
  if (length == 32 && type == bf16) return row_fake<E, bf16, kWay, 32>;
  if (length == 32 && type == f16) return row_fake<E, f16, kWay, 32>;
  if (type != f32) return nullptr;
  return length == 32   ? row_fake<E, f32, kWay, 32>
         : length == 16 ? row_fake<E, f32, kWay, 16>
         : length == 8  ? row_fake<E, f32, kWay, 8>
                        : nullptr;
}

template <class E, Way kWay>
static RowFakeKernel pair_fake_of(TensorType type, size_t length) {
  constexpr TensorType f32 = TensorType::kF32;
  if constexpr (std::is_same_v<E, FixedElement<0>> && kWay != Way::kZeros) {
    using G = OnPairs<E, kWay>;
    if (type == f32 && length == 8) return row_fake<E, f32, kWay, 8, G>;
    if (type == f32 && length == 16) return row_fake<E, f32, kWay, 16, G>;
  }
  return nullptr;
}

template <class E>
static RowCodeKernel row_code_of(TensorType type) {
  if (type == TensorType::kBf16) return row_code<E, TensorType::kBf16>;
  if (type == TensorType::kF16) return row_code<E, TensorType::kF16>;
  return row_code<E, TensorType::kF32>;
}

#else

template <class E, Way kWay>
static RowFakeKernel row_fake_of(TensorType, size_t) {
  return nullptr;
}
template <class E, Way kWay>
static RowFakeKernel pair_fake_of(TensorType, size_t) {
  return nullptr;
}
template <class E>
static RowCodeKernel row_code_of(TensorType) {
  return nullptr;
}

#endif
