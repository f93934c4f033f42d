// The extremes of blocks, and the encoding of runs of elements with given parameters.
// Included once per instruction set, inside its namespace.

template <bool kAll>
static BS_INLINE uint32_t magnitude_of(float x, uint32_t limit) {
  const uint32_t magnitude = bits_of(x) & kMagnitude;
  if constexpr (!kAll) return int32_t(magnitude) <= int32_t(limit) ? magnitude : 0;
  return magnitude;
}

template <bool kAll>
static BS_INLINE uint32_t amax_run(const float* x, size_t n, uint32_t limit) {
  int32_t m = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto a = int32_t(magnitude_of<kAll>(x[i], limit));
    m = a > m ? a : m;
  }
  return uint32_t(m);
}

template <size_t N>
struct Count {
  constexpr operator size_t() const { return N; }
};

// Calls run(first element, count, block index) for the part of each block that lies in the piece.
// Blocks of 32 have a loop of their own, with a constant count and nothing else in it.
template <class Run>
static BS_INLINE void for_blocks(const Piece& p, Run run) {
  size_t done = 0;
  size_t block = 0;
  if (p.block == 32 && p.skip == 0) {
    for (; done + 32 <= p.size; done += 32) run(done, Count<32>{}, block++);
  }
  size_t room = p.block - p.skip;
  while (done < p.size) {
    const size_t left = p.size - done;
    const size_t n = left < room ? left : room;
    run(done, n, block);
    done += n;
    room = p.block;
    ++block;
  }
}

template <bool kAll>
static void amax_of(const Piece& p, uint32_t limit, uint32_t* amax) {
  if (p.across == Across::kColumns) {
    for (size_t i = 0; i < p.size; ++i) {
      const uint32_t a = magnitude_of<kAll>(p.x[i], limit);
      amax[i] = int32_t(a) > int32_t(amax[i]) ? a : amax[i];
    }
    return;
  }
  for_blocks(p, [&](size_t start, auto n, size_t b) BS_INLINE_LAMBDA {
    const uint32_t a = amax_run<kAll>(p.x + start, n, limit);
    amax[b] = a > amax[b] ? a : amax[b];
  });
}

static void amax(const Piece& p, uint32_t limit, uint32_t* out) {
  limit >= kMagnitude ? amax_of<true>(p, limit, out) : amax_of<false>(p, limit, out);
}

// Bits of x if it is finite and above 0, else 0.
static BS_INLINE int32_t positive_part(uint32_t bits) {
  const auto value = int32_t(bits) > 0 ? int32_t(bits) : 0;
  return value < int32_t(kInfBits) ? value : 0;
}

static void extremes(const Piece& p, uint32_t* negative, uint32_t* positive) {
  if (p.across == Across::kColumns) {
    for (size_t i = 0; i < p.size; ++i) {
      const auto up = uint32_t(positive_part(bits_of(p.x[i])));
      const auto down = uint32_t(positive_part(bits_of(p.x[i]) ^ kSign));
      positive[i] = int32_t(up) > int32_t(positive[i]) ? up : positive[i];
      negative[i] = int32_t(down) > int32_t(negative[i]) ? down : negative[i];
    }
    return;
  }
  for_blocks(p, [&](size_t start, auto n, size_t b) BS_INLINE_LAMBDA {
    int32_t high = int32_t(positive[b]), low = int32_t(negative[b]);
    for (size_t i = start; i < start + n; ++i) {
      const int32_t up = positive_part(bits_of(p.x[i]));
      const int32_t down = positive_part(bits_of(p.x[i]) ^ kSign);
      high = up > high ? up : high;
      low = down > low ? down : low;
    }
    positive[b] = uint32_t(high);
    negative[b] = uint32_t(low);
  });
}

struct One {  // the parameters of one element
  float factor, scale, low, high;
  int32_t zero;
};

template <class E, class S, class R>
static BS_INLINE Rounded encode_one(float x, const One& one, const Ties& ties, uint32_t noise) {
  float v = S::apply(x, one.factor);
  if constexpr (!S::kNumbersOnly) v = number_or_zero(v);
  if constexpr (kIsFixed<E>) {  // floats have limits of their own
    v = v > one.high ? one.high : v;
    v = v < one.low ? one.low : v;
  }
  return round_element<R>(E{}, x, v, ties, noise);
}

template <class E>
static BS_INLINE int32_t stored_code(const Rounded& r, int32_t zero) {
  return kIsFixed<E> ? r.code + zero : r.code;
}

// A run of elements of one block.
template <class E, class S, class R>
static BS_INLINE void fake_run(const float* x, size_t n, One one, const Ties& ties,
                               const uint32_t* noise, float* BS_RESTRICT out) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = encode_one<E, S, R>(x[i], one, ties, R::kNoisy ? noise[i] : 0).value * one.scale;
  }
}

inline constexpr size_t kChunk = 32;

// At most kChunk codes. Integers first: vectors of floats and of bytes differ in length, and one
// loop over both would be as long as the longer.
template <class E, class S, class R, class Out>
static BS_INLINE void code_chunk(const float* x, size_t n, One one, const Ties& ties,
                                 const uint32_t* noise, Out* BS_RESTRICT out) {
  int32_t codes[kChunk];
  for (size_t i = 0; i < n; ++i) {
    codes[i] =
        stored_code<E>(encode_one<E, S, R>(x[i], one, ties, R::kNoisy ? noise[i] : 0), one.zero);
  }
  for (size_t i = 0; i < n; ++i) out[i] = Out(codes[i]);
}

template <class E, class S, class R, class Out>
static BS_INLINE void code_run(const float* x, size_t n, const One& one, const Ties& ties,
                               const uint32_t* noise, Out* BS_RESTRICT out) {
  size_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    code_chunk<E, S, R>(x + i, kChunk, one, ties, R::kNoisy ? noise + i : noise, out + i);
  }
  code_chunk<E, S, R>(x + i, n - i, one, ties, R::kNoisy ? noise + i : noise, out + i);
}

static BS_INLINE One one_of(const BlockParams& p, size_t b) {
  return {p.factor[b], p.scale[b], p.low[b], p.high[b], p.zero[b]};
}

template <class R>
inline const uint32_t* noise_of(const Piece& p, uint32_t* buffer) {
  if constexpr (R::kNoisy) fill_noise(p.index, p.seed, p.size, buffer);
  return buffer;
}

template <class R>
inline constexpr size_t kNoiseSize = R::kNoisy ? kPiece : 1;

template <class E, class S, class R>
static void fake(const Piece& p, const Numbers& numbers, float* BS_RESTRICT out) {
  uint32_t buffer[kNoiseSize<R>];
  const uint32_t* noise = noise_of<R>(p, buffer);
  const Ties ties = ties_of(numbers);
  const float* x = p.x;
  if (p.across == Across::kColumns) {
    const BlockParams& q = p.params;
    for (size_t i = 0; i < p.size; ++i) {
      const One one{q.factor[i], q.scale[i], kIsFixed<E> ? q.low[i] : 0,
                    kIsFixed<E> ? q.high[i] : 0, 0};
      out[i] = encode_one<E, S, R>(x[i], one, ties, R::kNoisy ? noise[i] : 0).value * one.scale;
    }
    return;
  }
  for_blocks(p, [&](size_t s, auto n, size_t b) BS_INLINE_LAMBDA {
    const uint32_t* z = R::kNoisy ? noise + s : noise;
    fake_run<E, S, R>(x + s, n, one_of(p.params, b), ties, z, out + s);
  });
}

template <class E, class S, class R, class Out>
static void code_to(const Piece& p, const Numbers& numbers, Out* BS_RESTRICT out) {
  uint32_t buffer[kNoiseSize<R>];
  const uint32_t* noise = noise_of<R>(p, buffer);
  const Ties ties = ties_of(numbers);
  const float* x = p.x;
  if (p.across == Across::kColumns) {
    const BlockParams& q = p.params;
    int32_t codes[kPiece];
    for (size_t i = 0; i < p.size; ++i) {
      const One one{q.factor[i], 0, kIsFixed<E> ? q.low[i] : 0, kIsFixed<E> ? q.high[i] : 0, 0};
      codes[i] = stored_code<E>(encode_one<E, S, R>(x[i], one, ties, R::kNoisy ? noise[i] : 0),
                                kIsFixed<E> ? q.zero[i] : 0);
    }
    for (size_t i = 0; i < p.size; ++i) out[i] = Out(codes[i]);
    return;
  }
  for_blocks(p, [&](size_t s, auto n, size_t b) BS_INLINE_LAMBDA {
    const uint32_t* z = R::kNoisy ? noise + s : noise;
    code_run<E, S, R>(x + s, n, one_of(p.params, b), ties, z, out + s);
  });
}

template <class E, class S, class R>
static void code(const Piece& p, const Numbers& numbers, uint8_t* out, uint16_t* wide) {
  if constexpr (std::is_same_v<E, FixedElement<0>>) {
    if (numbers.element_format().bits > 8) return code_to<E, S, R>(p, numbers, wide);
  }
  code_to<E, S, R>(p, numbers, out);
}
