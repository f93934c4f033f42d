// The grids of kernel_grid.h, 16 blocks or elements at a time. AVX-512. Included once per
// instruction set, inside its namespace.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

static BS_INLINE __m512i all_of(int32_t value) { return _mm512_set1_epi32(value); }

// What an element meets: bits of floats, as in GridRule.
struct Grid {
  __m512i limit, least;
  __m512i kept;  // fixed, kZeros: what becomes 0 has the sign of x up to this magnitude
};

// The grids of 16 blocks, a lane each.
struct Grids : Grid {
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
    kept = underflowing(near);
  }
  // Up to 2^(s - 150), what is divided by 2^s becomes 0; nothing else does unless s is above 0.
  static BS_INLINE __m512i underflowing(__m512i s) {
    const __m512i subnormal = _mm512_sllv_epi32(all_of(1), _mm512_sub_epi32(s, all_of(1)));
    return _mm512_mask_slli_epi32(subnormal, _mm512_cmpgt_epi32_mask(s, all_of(23)),
                                  _mm512_sub_epi32(s, all_of(23)), 23);
  }
  BS_INLINE __m128i codes() const {
    const __m512i code = _mm512_add_epi32(exponent, all_of(127));
    return _mm512_cvtepi32_epi8(_mm512_max_epi32(code, _mm512_setzero_si512()));
  }
};

// Elements on the grid of their block, or their codes, in the low byte of each lane (kPlain only).
template <class E, Way kWay, bool kCodes = false>
struct OnGrid;

template <int ID, Way kWay, bool kCodes>
struct OnGrid<FloatElement<ID>, kWay, kCodes> {
  static constexpr Format kFormat = kFormats[ID];
  static constexpr int kShift = 23 - kFormat.mantissa_bits;
  __m512 limit;
  __m512i least, origin;

  BS_INLINE OnGrid(const Grid& grid, const GridRule&)
      : limit(_mm512_castsi512_ps(grid.limit)), least(grid.least) {
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
      const __m512i y = _mm512_ternarylogic_epi32(r, bits, all_of(int32_t(kSign)), or_and);
      if constexpr (kWay == Way::kPlain) return y;
      return _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(y), _mm512_setzero_ps()));
    }
    // The last bits of the anchor are 0: those of the sum count steps of the binade.
    const __m512i steps = _mm512_sub_epi32(_mm512_castps_si512(sum), origin);
    const __m512i code = _mm512_add_epi32(steps, _mm512_srli_epi32(binade, kShift));
    const __m512i sign = _mm512_srli_epi32(bits, 32 - kFormat.bits);
    return _mm512_ternarylogic_epi32(code, sign, all_of(1 << (kFormat.bits - 1)), or_and);
  }
};

template <int F, Way kWay, bool kCodes>
struct OnGrid<FixedElement<F>, kWay, kCodes> {
  __m512 limit, bottom, anchor;
  __m512i kept, measured;

  BS_INLINE OnGrid(const Grid& grid, const GridRule& rule)
      : limit(_mm512_castsi512_ps(grid.limit)),
        bottom(_mm512_mul_ps(limit, _mm512_set1_ps(rule.bottom))),
        anchor(_mm512_castsi512_ps(grid.least)),
        kept(grid.kept),
        measured(all_of(rule.measured)) {}
  BS_INLINE __m512i operator()(__m512 x) const {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512 v = _mm512_max_ps(_mm512_min_ps(x, limit), bottom);
    constexpr int or_and = 0xf8;  // a | (b & c)
    if constexpr (kWay == Way::kTies) {
      // In halves of a step, downward; then the odd ones up.
      const __m512i part = _mm512_and_si512(_mm512_castps_si512(v), measured);
      constexpr int down = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
      const __m512 halves = _mm512_add_round_ps(_mm512_castsi512_ps(part), anchor, down);
      const __m512i raised = _mm512_add_epi32(_mm512_castps_si512(halves), all_of(1));
      const __m512 sum = _mm512_castsi512_ps(_mm512_and_si512(raised, all_of(~1)));
      const __m512i r = _mm512_castps_si512(_mm512_sub_ps(sum, anchor));
      return _mm512_ternarylogic_epi32(r, bits, all_of(int32_t(kSign)), or_and);
    }
    const __m512 sum = _mm512_add_ps(v, anchor);
    if constexpr (kCodes) return _mm512_castps_si512(sum);
    const __m512i r = _mm512_castps_si512(_mm512_sub_ps(sum, anchor));
    if constexpr (kWay == Way::kPlain) return r;
    if constexpr (kWay == Way::kSigns) {
      return _mm512_ternarylogic_epi32(r, bits, all_of(int32_t(kSign)), or_and);
    }
    const __m512i magnitude = _mm512_and_si512(bits, all_of(int32_t(kMagnitude)));
    const __mmask16 keeps = _mm512_cmple_epi32_mask(magnitude, kept);
    return _mm512_mask_ternarylogic_epi32(r, keeps, bits, all_of(int32_t(kSign)), or_and);
  }
};

// The same where pairs of elements have scales of their own, which lie in one binade with the
// greater one, but at most so far below that of their block as the rule says.
template <class E, Way kWay>
struct OnPairs {
  GridRule rule;
  __m512i floor;  // its scale, as the least a pair's may be: bits of limit

  BS_INLINE OnPairs(const Grid& grid, const GridRule& of)
      : rule(of), floor(_mm512_sub_epi32(grid.limit, all_of(of.most_below << 23))) {}
  // `greatest`: with the exponent of the pair's greatest magnitude.
  BS_INLINE OnGrid<E, kWay> of(__m512i greatest) const {
    // From its binade to the greatest number's: both have the same exponent.
    const __m512i binade = _mm512_and_si512(greatest, all_of(int32_t(kInfBits)));
    const __m512i limit = _mm512_or_si512(binade, all_of(rule.limit & 0x7fffff));
    Grid grid;
    grid.limit = _mm512_max_epi32(limit, floor);
    grid.least = _mm512_add_epi32(grid.limit, all_of(rule.least - rule.limit));
    grid.kept = all_of(0);
    return {grid, rule};
  }
  // Pairs in a row.
  BS_INLINE __m512i operator()(__m512 x) const {
    const __m512i own = _mm512_and_si512(_mm512_castps_si512(x), all_of(int32_t(kMagnitude)));
    return of(_mm512_max_epi32(own, _mm512_shuffle_epi32(own, _MM_PERM_CDAB)))(x);
  }
};

#endif
