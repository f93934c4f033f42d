// Rows of MX blocks of 8 or 16 elements whose pairs have scales of their own (MX9, MX6, MX4), from
// memory to memory: a vector holds whole blocks. AVX-512. Included once per instruction set, inside
// its namespace.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

// y may be x.
template <Way kWay, size_t kLength>
static size_t pair_fake(const void* from, size_t blocks, const Numbers& numbers, void* to) {
  constexpr size_t each = 16 / kLength;  // blocks of a vector
  const GridRule rule = grid_rule_of<FixedElement<0>>(numbers, TensorType::kF32);
  const auto* x = static_cast<const float*>(from);
  auto* y = static_cast<float*>(to);
  size_t done = 0;
  for (; done + each <= blocks; done += each, x += 16, y += 16) {
    const __m512 values = _mm512_loadu_ps(x);
    const __m512i own = _mm512_and_si512(_mm512_castps_si512(values), all_of(int32_t(kMagnitude)));
    const __m512i pair = _mm512_max_epi32(own, _mm512_shuffle_epi32(own, _MM_PERM_CDAB));
    __m512i all = _mm512_max_epi32(pair, _mm512_shuffle_epi32(pair, _MM_PERM_BADC));
    all = _mm512_max_epi32(all, _mm512_shuffle_i32x4(all, all, 0xb1));
    if constexpr (kLength == 16) all = _mm512_max_epi32(all, _mm512_shuffle_i32x4(all, all, 0x4e));
    const Grids grids(pair, all, rule);
    if (!grids.ordinary) return done;
    const OnGrid<FixedElement<0>, kWay> grid(grids, rule);
    _mm512_storeu_si512(y, grid(values));
  }
  return done;
}

template <Way kWay>
static RowFakeKernel pair_fake_of(TensorType type, size_t length) {
  if (type != TensorType::kF32) return nullptr;
  return length == 16 ? pair_fake<kWay, 16> : length == 8 ? pair_fake<kWay, 8> : nullptr;
}

#else

template <Way kWay>
static RowFakeKernel pair_fake_of(TensorType, size_t) {
  return nullptr;
}

#endif
