// Rows of x as kernels take them (Operand). Plain loops: the compiler makes vectors of them.
// Included once per instruction set, inside its namespace.

// Of a quad: where its elements are in rows of 16 bits.
static constexpr int kQuadOrder[4] = {0, 2, 1, 3};

// The integers of a block of `count` codes; zeros after them.
static BS_INLINE void block_integers(const IntegerRow& row, size_t at, size_t count,
                                     const int16_t* table, int16_t* to) {
  const uint8_t* codes = row.codes + at;
  for (size_t i = count; i < kBlockOfK; ++i) to[i] = 0;
  if (table != nullptr) {
    for (size_t i = 0; i < count; ++i) to[i] = table[codes[i]];
  } else if (row.is_unsigned) {
    for (size_t i = 0; i < count; ++i) to[i] = int16_t(int(codes[i]) - 128);
  } else {
    for (size_t i = 0; i < count; ++i) to[i] = int8_t(codes[i]);
  }
}

// Of the codes of formats of few bits; null for those that are integers.
static const int16_t* integer_table(Code code) {
  struct Table {
    int16_t entry[3][64];
    constexpr Table() : entry() {
      for (int i = 0; i < 64; ++i) {
        entry[0][i] = int16_t(fp4_integer(i & 15));
        entry[1][i] = int16_t(e2m3_integer(i));
        entry[2][i] = int16_t(e3m2_integer(i));
      }
    }
  };
  static constexpr Table table;
  return code == Code::kFp4    ? table.entry[0]
         : code == Code::kE2m3 ? table.entry[1]
         : code == Code::kE3m2 ? table.entry[2]
                               : nullptr;
}

static BS_INLINE int32_t block_sum(const int16_t* values) {
  int32_t sum = 0;
  for (size_t i = 0; i < kBlockOfK; ++i) sum += values[i];
  return sum;
}

// The same of a whole block of stored int8.
static BS_INLINE int32_t copy_int8(const uint8_t* codes, uint8_t* to) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v);
  const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), v);
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return _mm_cvtsi128_si32(sum);
#else
  int32_t sum = 0;
  for (size_t i = 0; i < kBlockOfK; ++i) sum += int8_t(codes[i]);
  memcpy(to, codes, kBlockOfK);
  return sum;
#endif
}

// 32 integers of int8 from a row, zeros after its end; their sum.
static BS_INLINE int32_t copy_block(const IntegerRow& row, size_t k, const int16_t* table,
                                    uint8_t* to) {
  const size_t count = std::min(kBlockOfK, row.k - k);
  if (table == nullptr && !row.is_unsigned && count == kBlockOfK) {
    return copy_int8(row.codes + k, to);
  }
  int16_t values[kBlockOfK];
  block_integers(row, k, count, table, values);
  for (size_t i = 0; i < kBlockOfK; ++i) to[i] = uint8_t(values[i]);
  return block_sum(values);
}

static void exact_row(const IntegerRow& row, const uint8_t* scales, Code w, int fraction_bits,
                      Operand operand, uint8_t* to) {
  const int16_t* table = integer_table(row.code);
  const int32_t offset = code_offset(w) - kBias;
  for (size_t k = 0; k < row.k; k += kBlockOfK, ++scales) {
    int32_t magic[2] = {magic_of_x(*scales, fraction_bits), 0};
    if (operand == Operand::kExact) {
      magic[1] = magic[0] + offset * copy_block(row, k, table, to);
      memcpy(to + kBlockOfK, magic, 8);
    } else {
      int16_t values[kBlockOfK];
      block_integers(row, k, std::min(kBlockOfK, row.k - k), table, values);
      int16_t ordered[kBlockOfK];
      for (size_t i = 0; i < kBlockOfK; ++i)
        ordered[i] = values[(i & ~size_t{3}) + kQuadOrder[i & 3]];
      memcpy(to, ordered, sizeof(ordered));
      memcpy(to + sizeof(ordered), magic, 4);
    }
    to += operand_bytes(operand);
  }
}

static void int8_row(const IntegerRow& row, const WeightView& w, uint8_t* to) {
  const int16_t* table = integer_table(row.code);
  const int32_t offset = w.zeros ? 1 : code_offset(w.code) - kBias;
  constexpr size_t record = operand_bytes(Operand::kInt8);
  for (size_t k = 0; k < row.k;) {
    uint8_t* first = to;
    int32_t sum = 0;
    for (size_t b = 0; b < w.run && k < row.k; ++b, k += kBlockOfK, to += record) {
      sum += copy_block(row, k, table, to);
      memset(to + kBlockOfK, 0, 4);
    }
    const int32_t correction = -offset * sum;
    memcpy(first + kBlockOfK, &correction, 4);
  }
}

// Rounded half to even; NaN and Inf stay.
static BS_INLINE uint16_t narrow(uint32_t bits) {
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const bool nan = (bits & kMagnitude) > kInfBits;
  return uint16_t(nan ? (bits >> 16) | 0x40 : rounded >> 16);
}

static void real_row(const void* x, TensorType type, size_t k, Operand operand, uint8_t* to) {
  for (size_t at = 0; at < k; at += kBlockOfK, to += operand_bytes(operand)) {
    const size_t count = std::min(kBlockOfK, k - at);
    float values[kBlockOfK] = {};
    if (type == TensorType::kF32) {
      memcpy(values, static_cast<const float*>(x) + at, count * sizeof(float));
    } else {
      const uint16_t* from = static_cast<const uint16_t*>(x) + at;
      if (type == TensorType::kBf16) {
        for (size_t i = 0; i < count; ++i) values[i] = bfloat_to_float(from[i]);
      } else {
        for (size_t i = 0; i < count; ++i) values[i] = half_to_float(from[i]);
      }
    }
    if (operand == Operand::kReal) {
      memcpy(to, values, sizeof(values));
      continue;
    }
    uint16_t halves[kBlockOfK], ordered[kBlockOfK];
    for (size_t i = 0; i < kBlockOfK; ++i) halves[i] = narrow(bits_of(values[i]));
    for (size_t i = 0; i < kBlockOfK; ++i)
      ordered[i] = halves[(i & ~size_t{3}) + kQuadOrder[i & 3]];
    memcpy(to, ordered, sizeof(ordered));
  }
}
