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
static bool column_grids(const Numbers& numbers, const uint32_t* amax, size_t n, float* limit,
                         float* least) {
  const GridRule rule = grid_rule_of<E>(numbers, TensorType::kF32);
  bool ordinary = true;
  for (size_t i = 0; i < n; i += 16) {
    const Grids grids(_mm512_maskz_loadu_epi32(lanes_of(n - i), amax + i), rule);
    _mm512_storeu_si512(limit + i, grids.limit);
    _mm512_storeu_si512(least + i, grids.least);
    ordinary &= grids.ordinary;
  }
  return ordinary;
}

template <class Grid, bool kNext>
static void column_row_of(const float* x, size_t n, const float* limit, const float* least,
                          float* y, ColumnKernels::Next next) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Grid grid(_mm512_loadu_ps(limit + i), _mm512_loadu_ps(least + i));
    _mm512_storeu_si512(y + i, grid(_mm512_loadu_ps(x + i)));
    if constexpr (kNext) look_at(next, i, 0xffff);
  }
  if (i == n) return;
  const __mmask16 m = lanes_of(n - i);
  const Grid grid(_mm512_loadu_ps(limit + i), _mm512_loadu_ps(least + i));
  _mm512_mask_storeu_epi32(y + i, m, grid(_mm512_maskz_loadu_ps(m, x + i)));
  if constexpr (kNext) look_at(next, i, m);
}

template <class Grid>
static void column_row(const float* x, size_t n, const float* limit, const float* least, float* y,
                       const ColumnKernels::Next* next) {
  if (next != nullptr) {
    column_row_of<Grid, true>(x, n, limit, least, y, *next);
  } else {
    column_row_of<Grid, false>(x, n, limit, least, y, {});
  }
}

template <class E>
static ColumnKernels column_kernels_of(bool passes) {
  const auto row = passes ? column_row<FakeGrid<E, true>> : column_row<FakeGrid<E, false>>;
  return {column_look, column_grids<E>, row};
}

#else

template <class E>
static ColumnKernels column_kernels_of(bool) {
  return {};
}

#endif
