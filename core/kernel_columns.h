// MX blocks that run across rows, a column each, on the grids of kernel_rows.h. AVX-512. Arrays
// have room for a multiple of 16. Included once per instruction set, inside its namespace.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

static BS_INLINE __mmask16 lanes_of(size_t left) {
  return left >= 16 ? __mmask16(0xffff) : __mmask16((1u << left) - 1);
}

static BS_INLINE void look_at(const ColumnKernels::Next& next, size_t i, __mmask16 m) {
  const __m512i bits = _mm512_maskz_loadu_epi32(m, next.x + i);
  const __m512i magnitude = _mm512_and_si512(bits, all_of(int32_t(kMagnitude)));
  const __m512i amax = _mm512_max_epi32(magnitude, _mm512_loadu_si512(next.amax + i));
  _mm512_storeu_si512(next.amax + i, amax);
  _mm_prefetch(reinterpret_cast<const char*>(next.ahead + i), _MM_HINT_T0);
}

static void column_look(const ColumnKernels::Next& next, size_t n) {
  for (size_t i = 0; i < n; i += 16) look_at(next, i, lanes_of(n - i));
}

template <class E>
static bool column_grids(const Numbers& numbers, const uint32_t* amax, size_t n,
                         ColumnKernels::Grids to) {
  const GridRule rule = grid_rule_of<E>(numbers, TensorType::kF32);
  bool ordinary = true;
  for (size_t i = 0; i < n; i += 16) {
    const Grids grids(_mm512_maskz_loadu_epi32(lanes_of(n - i), amax + i), rule);
    _mm512_storeu_si512(to.limit + i, grids.limit);
    _mm512_storeu_si512(to.least + i, grids.least);
    _mm512_storeu_si512(to.kept + i, grids.kept);
    ordinary &= grids.ordinary;
  }
  return ordinary;
}

static BS_INLINE Grid grid_at(const ColumnKernels::Grids& grids, size_t i) {
  return {_mm512_loadu_si512(grids.limit + i), _mm512_loadu_si512(grids.least + i),
          _mm512_loadu_si512(grids.kept + i)};
}

template <class E, Way kWay, bool kNext>
static void column_row_of(const float* x, size_t n, const ColumnKernels::Grids& grids,
                          const GridRule& rule, float* y, ColumnKernels::Next next) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const OnGrid<E, kWay> grid(grid_at(grids, i), rule);
    _mm512_storeu_si512(y + i, grid(_mm512_loadu_ps(x + i)));
    if constexpr (kNext) look_at(next, i, 0xffff);
  }
  if (i == n) return;
  const __mmask16 m = lanes_of(n - i);
  const OnGrid<E, kWay> grid(grid_at(grids, i), rule);
  _mm512_mask_storeu_epi32(y + i, m, grid(_mm512_maskz_loadu_ps(m, x + i)));
  if constexpr (kNext) look_at(next, i, m);
}

template <class E, Way kWay>
static void column_row(const Numbers& numbers, const float* x, size_t n,
                       const ColumnKernels::Grids& grids, float* y,
                       const ColumnKernels::Next* next) {
  const GridRule rule = grid_rule_of<E>(numbers, TensorType::kF32);
  if (next != nullptr) {
    column_row_of<E, kWay, true>(x, n, grids, rule, y, *next);
  } else {
    column_row_of<E, kWay, false>(x, n, grids, rule, y, {});
  }
}

template <class E, Way kWay>
static void column_pair(const Numbers& numbers, const float* const x[2], size_t n,
                        const ColumnKernels::Grids& grids, float* const y[2]) {
  const GridRule rule = grid_rule_of<E>(numbers, TensorType::kF32);
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 m = lanes_of(n - i);
    const OnPairs<E, kWay> pairs(grid_at(grids, i), rule);
    const __m512 a = _mm512_maskz_loadu_ps(m, x[0] + i), b = _mm512_maskz_loadu_ps(m, x[1] + i);
    const __m512 greatest = _mm512_range_ps(a, b, 0x0b);  // the larger, without a sign
    const OnGrid<E, kWay> grid = pairs.of(_mm512_castps_si512(greatest));
    _mm512_mask_storeu_epi32(y[0] + i, m, grid(a));
    _mm512_mask_storeu_epi32(y[1] + i, m, grid(b));
  }
}

template <class E, Way kWay>
static ColumnKernels column_kernels_of() {
  if constexpr (std::is_same_v<E, FixedElement<0>> && kWay != Way::kZeros) {
    return {column_look, column_grids<E>, column_row<E, kWay>, column_pair<E, kWay>};
  }
  return {column_look, column_grids<E>, column_row<E, kWay>, nullptr};
}

#else

template <class E, Way kWay>
static ColumnKernels column_kernels_of() {
  return {};
}

#endif
