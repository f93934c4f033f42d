// Rows of MX blocks of 32 from memory to memory, 16 blocks at a time: their maxima are found side
// by side, so that what a block costs beside its elements is shared by 16. AVX-512. Included once
// per instruction set, inside its namespace.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

inline constexpr size_t kGroup = 16;  // blocks
inline constexpr size_t kBlock = 32;  // elements

static BS_INLINE __m512i all_of(int32_t value) { return _mm512_set1_epi32(value); }

// A block of each type of tensor: 32 elements as two vectors of floats, in any order, and back.
// `greatest`: numbers that order as the magnitudes do, whose maximum `magnitude` makes float32 of.
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
  static void widen(const float* x, float* to) { load_f32(x, 1, to, kBlock); }
  static void narrow(const float* from, float* y) { store_f32(from, y, 1, kBlock); }
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
  static void widen(const uint16_t* x, float* to) { load_bf16(x, 1, to, kBlock); }
  static void narrow(const float* from, uint16_t* y) { store_bf16(from, y, 1, kBlock); }
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
  static void widen(const uint16_t* x, float* to) { load_f16(x, 1, to, kBlock); }
  static void narrow(const float* from, uint16_t* y) { store_f16(from, y, 1, kBlock); }
};

// Lane i of the result: the greatest of vector i.
static BS_INLINE __m512i greatest_of_each(const __m512i v[kGroup]) {
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
template <class T>
static BS_INLINE void ahead(const T* x) {
  constexpr size_t distance = 8192;  // bytes
  const auto* at = reinterpret_cast<const char*>(x) + distance;
  for (size_t i = 0; i < kBlock * sizeof(T); i += 64) _mm_prefetch(at + i, _MM_HINT_T0);
}

// The grids of 16 blocks, a lane each: bits of floats, as in GridRule.
struct Grids {
  __m512i limit, least;
  __m512i exponent;  // of the scale
  bool ordinary;     // the general kernels are not needed

  BS_INLINE Grids(__m512i amax, const GridRule& rule) {
    const __m512i field = _mm512_srai_epi32(_mm512_add_epi32(amax, all_of(rule.increment)), 23);
    exponent = _mm512_sub_epi32(field, all_of(127 + rule.emax));
    const __m512i near =
        _mm512_max_epi32(exponent, all_of(rule.lowest));  // all of a block of zeros
    const __mmask16 low =
        _mm512_cmplt_epi32_mask(exponent, near) | _mm512_cmplt_epi32_mask(amax, all_of(0x00800000));
    const __mmask16 high = _mm512_cmpgt_epi32_mask(exponent, all_of(rule.highest));
    const __mmask16 special = _mm512_cmpge_epi32_mask(amax, all_of(int32_t(kInfBits)));
    ordinary = ((low & _mm512_test_epi32_mask(amax, amax)) | high | special) == 0;
    const __m512i moved = _mm512_slli_epi32(near, 23);
    limit = _mm512_add_epi32(moved, all_of(rule.limit));
    least = _mm512_add_epi32(moved, all_of(rule.least));
  }
  BS_INLINE __m128i codes() const {
    const __m512i code = _mm512_add_epi32(exponent, all_of(127));
    return _mm512_cvtepi32_epi8(_mm512_max_epi32(code, _mm512_setzero_si512()));
  }
};

// Those of a group of blocks in memory, to be taken one by one.
struct GroupGrids {
  alignas(64) float limit[kGroup];
  alignas(64) float least[kGroup];
  __m128i scales;
  bool ordinary;
};

template <TensorType T>
static BS_INLINE void find_grids(const __m512i v[kGroup], const GridRule& rule, GroupGrids& g) {
  const Grids grids(Elements<T>::magnitude(greatest_of_each(v)), rule);
  _mm512_store_si512(g.limit, grids.limit);
  _mm512_store_si512(g.least, grids.least);
  g.scales = grids.codes();
  g.ordinary = grids.ordinary;
}

// Elements on the grid of their block, and where asked for their codes, in the low byte of each
// lane.
template <class E, bool kCodes>
struct OnGrid;

template <int ID, bool kCodes>
struct OnGrid<FloatElement<ID>, kCodes> {
  static constexpr Format kFormat = kFormats[ID];
  static constexpr int kShift = 23 - kFormat.mantissa_bits;
  __m512 limit;
  __m512i least, origin;

  BS_INLINE OnGrid(float largest, float smallest)
      : OnGrid(_mm512_set1_ps(largest), _mm512_set1_ps(smallest)) {}
  BS_INLINE OnGrid(__m512 largest, __m512 smallest)
      : limit(largest), least(_mm512_castps_si512(smallest)) {
    if constexpr (kCodes) origin = _mm512_srli_epi32(least, kShift);
  }
  BS_INLINE __m512i operator()(__m512 x) const {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512 magnitude = _mm512_range_ps(x, limit, 0x0a);  // the smaller, without a sign
    const __m512i field =
        _mm512_and_si512(_mm512_castps_si512(magnitude), all_of(int32_t(kInfBits)));
    const __m512i binade = _mm512_max_epi32(field, least);
    const __m512 anchor = _mm512_castsi512_ps(_mm512_add_epi32(binade, all_of(kShift << 23)));
    const __m512 sum = _mm512_add_ps(magnitude, anchor);
    constexpr int or_and = 0xf8;  // a | (b & c)
    if constexpr (!kCodes) {
      const __m512i r = _mm512_castps_si512(_mm512_sub_ps(sum, anchor));
      return _mm512_ternarylogic_epi32(r, bits, all_of(int32_t(kSign)), or_and);
    }
    // The last bits of the anchor are 0: those of the sum count steps of the binade.
    const __m512i steps = _mm512_sub_epi32(_mm512_castps_si512(sum), origin);
    const __m512i code = _mm512_add_epi32(steps, _mm512_srli_epi32(binade, kShift));
    const __m512i sign = _mm512_srli_epi32(bits, 32 - kFormat.bits);
    return _mm512_ternarylogic_epi32(code, sign, all_of(1 << (kFormat.bits - 1)), or_and);
  }
};

template <int F, bool kCodes>
struct OnGrid<FixedElement<F>, kCodes> {
  __m512 limit, bottom, anchor;

  BS_INLINE OnGrid(float largest, float of_anchor)
      : OnGrid(_mm512_set1_ps(largest), _mm512_set1_ps(of_anchor)) {}
  BS_INLINE OnGrid(__m512 largest, __m512 of_anchor)
      : limit(largest), bottom(_mm512_sub_ps(_mm512_setzero_ps(), largest)), anchor(of_anchor) {}
  BS_INLINE __m512i operator()(__m512 x) const {
    const __m512 v = _mm512_max_ps(_mm512_min_ps(x, limit), bottom);
    const __m512 sum = _mm512_add_ps(v, anchor);
    return _mm512_castps_si512(kCodes ? sum : _mm512_sub_ps(sum, anchor));
  }
};

// The same for numbers of `has_passing_grid`.
template <class E>
struct PassingGrid;

// Zeros have no sign.
template <int ID>
struct PassingGrid<FloatElement<ID>> {
  OnGrid<FloatElement<ID>, false> grid;

  template <class T>
  BS_INLINE PassingGrid(T largest, T smallest) : grid(largest, smallest) {}
  BS_INLINE __m512i operator()(__m512 x) const {
    const __m512 r = _mm512_castsi512_ps(grid(x));
    return _mm512_castps_si512(_mm512_add_ps(r, _mm512_setzero_ps()));
  }
};

// No x lies below the least code, and a zero has the sign of an x whose quotient by the scale is 0.
template <int F>
struct PassingGrid<FixedElement<F>> {
  __m512 limit, anchor;
  __m512i least;  // bits of 2^-150 times the scale: a quotient of 2^-150 is 0

  BS_INLINE PassingGrid(float largest, float of_anchor)
      : PassingGrid(_mm512_set1_ps(largest), _mm512_set1_ps(of_anchor)) {}
  // By integers: a product that is no normal number would take long.
  BS_INLINE PassingGrid(__m512 largest, __m512 of_anchor) : limit(largest), anchor(of_anchor) {
    const __m512i field = _mm512_srli_epi32(_mm512_castps_si512(limit), 23);
    const __m512i lowered = _mm512_sub_epi32(field, all_of(150));
    const __m512i subnormal = _mm512_sllv_epi32(
        all_of(1), _mm512_sub_epi32(field, all_of(128)));  // 0 where it is negative
    const __mmask16 is_normal = _mm512_cmpgt_epi32_mask(lowered, _mm512_setzero_si512());
    least = _mm512_mask_slli_epi32(subnormal, is_normal, lowered, 23);
  }
  BS_INLINE __m512i operator()(__m512 x) const {
    const __m512 sum = _mm512_add_ps(_mm512_min_ps(x, limit), anchor);
    const __m512i r = _mm512_castps_si512(_mm512_sub_ps(sum, anchor));
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i magnitude = _mm512_and_si512(bits, all_of(int32_t(kMagnitude)));
    const __mmask16 vanishes = _mm512_cmple_epi32_mask(magnitude, least);
    return _mm512_mask_or_epi32(r, vanishes, r, _mm512_and_si512(bits, all_of(int32_t(kSign))));
  }
};

template <class E, bool kPasses>
using FakeGrid = std::conditional_t<kPasses, PassingGrid<E>, OnGrid<E, false>>;

template <class E, TensorType T, bool kPasses>
static BS_COLD void fake_one_by_one(const typename Elements<T>::Type* x, size_t blocks,
                                    const Numbers& numbers, typename Elements<T>::Type* y) {
  const Ties ties = ties_of(numbers);
  const MxRule rule = mx_rule_of(numbers);
  float wide[kBlock], out[kBlock];
  for (size_t b = 0; b < blocks; ++b) {
    Elements<T>::widen(x + b * kBlock, wide);
    if constexpr (kPasses) {
      passing_block<E, ByTies>(wide, kBlock, numbers, rule, ties, nullptr, out);
    } else {
      fused_fake_block<E, HalfEven>(wide, kBlock, rule, ties, nullptr, out);
    }
    Elements<T>::narrow(out, y + b * kBlock);
  }
}

template <class E, TensorType T>
static BS_COLD void code_one_by_one(const typename Elements<T>::Type* x, size_t blocks,
                                    const Numbers& numbers, uint8_t* codes, uint8_t* scales) {
  const Ties ties = ties_of(numbers);
  const MxRule rule = mx_rule_of(numbers);
  float wide[kBlock];
  for (size_t b = 0; b < blocks; ++b) {
    Elements<T>::widen(x + b * kBlock, wide);
    fused_code_block<E, HalfEven>(wide, kBlock, rule, ties, nullptr, codes + b * kBlock,
                                  scales + b);
  }
}

// y may be x.
template <class E, TensorType T, bool kPasses = false>
static void row_fake(const void* from, size_t blocks, const Numbers& numbers, void* to) {
  using Type = typename Elements<T>::Type;
  const GridRule rule = grid_rule_of<E>(numbers, T);
  const auto* x = static_cast<const Type*>(from);
  auto* y = static_cast<Type*>(to);
  GroupGrids g;
  __m512i v[kGroup];
  for (; blocks >= kGroup; blocks -= kGroup, x += kGroup * kBlock, y += kGroup * kBlock) {
    for (size_t b = 0; b < kGroup; ++b) v[b] = Elements<T>::greatest(x + b * kBlock);
    find_grids<T>(v, rule, g);
    if (!g.ordinary) {
      fake_one_by_one<E, T, kPasses>(x, kGroup, numbers, y);
      continue;
    }
    for (size_t b = 0; b < kGroup; ++b) {
      const FakeGrid<E, kPasses> grid(g.limit[b], g.least[b]);
      __m512 low, high;
      Elements<T>::load(x + b * kBlock, low, high);
      ahead(x + b * kBlock);
      Elements<T>::store(y + b * kBlock, _mm512_castsi512_ps(grid(low)),
                         _mm512_castsi512_ps(grid(high)));
    }
  }
  if (blocks > 0) fake_one_by_one<E, T, kPasses>(x, blocks, numbers, y);
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
static void row_code(const void* from, size_t blocks, const Numbers& numbers,
                     uint8_t* BS_RESTRICT codes, uint8_t* BS_RESTRICT scales) {
  const GridRule rule = grid_rule_of<E>(numbers, TensorType::kF32);  // codes fit any range
  const auto* x = static_cast<const typename Elements<T>::Type*>(from);
  GroupGrids g;
  __m512i v[kGroup];
  for (; blocks >= kGroup; blocks -= kGroup, x += kGroup * kBlock) {
    for (size_t b = 0; b < kGroup; ++b) v[b] = Elements<T>::greatest(x + b * kBlock);
    find_grids<T>(v, rule, g);
    if (g.ordinary) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(scales), g.scales);
      for (size_t b = 0; b < kGroup; ++b) {
        const OnGrid<E, true> grid(g.limit[b], g.least[b]);
        __m512 low, high;
        Elements<T>::load(x + b * kBlock, low, high);
        ahead(x + b * kBlock);
        store_codes<T>(grid(low), grid(high), codes + b * kBlock);
      }
    } else {
      code_one_by_one<E, T>(x, kGroup, numbers, codes, scales);
    }
    codes += kGroup * kBlock;
    scales += kGroup;
  }
  if (blocks > 0) code_one_by_one<E, T>(x, blocks, numbers, codes, scales);
}

template <class E>
static RowFakeKernel row_fake_of(TensorType type) {
  if (type == TensorType::kBf16) return row_fake<E, TensorType::kBf16>;
  if (type == TensorType::kF16) return row_fake<E, TensorType::kF16>;
  return row_fake<E, TensorType::kF32>;
}

// Of float32 alone: what overflows in other types must not saturate.
template <class E>
static RowFakeKernel passing_row_of(TensorType type) {
  return type == TensorType::kF32 ? row_fake<E, TensorType::kF32, true> : nullptr;
}

template <class E>
static RowCodeKernel row_code_of(TensorType type) {
  if (type == TensorType::kBf16) return row_code<E, TensorType::kBf16>;
  if (type == TensorType::kF16) return row_code<E, TensorType::kF16>;
  return row_code<E, TensorType::kF32>;
}

#else

template <class E>
static RowFakeKernel row_fake_of(TensorType) {
  return nullptr;
}
template <class E>
static RowFakeKernel passing_row_of(TensorType) {
  return nullptr;
}
template <class E>
static RowCodeKernel row_code_of(TensorType) {
  return nullptr;
}

#endif
