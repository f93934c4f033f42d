// Scale and result in one go: MX blocks along a row whose scales are chosen. Reading a block once,
// with its scale found in passing, is what makes fake-quantize as fast as a copy. Included once per
// instruction set, inside its namespace.

static inline bool can_fuse(const Numbers& numbers) {
  return numbers.family == Family::kMx && numbers.rule != Rule::kMse &&
         numbers.nonfinite == Nonfinite::kBlock && numbers.saturates && numbers.clamps &&
         numbers.sub_block == 0;
}

// The same of numbers that let NaN and Inf pass and clamp nothing, as AMD Quark's: an ordinary
// block has neither, and a scale that both ways have.
static inline bool can_fuse_passing(const Numbers& numbers) {
  return numbers.family == Family::kMx && numbers.rule == Rule::kFloor &&
         numbers.nonfinite == Nonfinite::kPass && !numbers.saturates && !numbers.clamps &&
         !numbers.flushes && numbers.sub_block == 0;
}

// What does not change from block to block.
struct MxRule {
  int32_t increment, emax, overflow;
  float low, high;
};

static inline MxRule mx_rule_of(const Numbers& numbers) {
  const Format& element = numbers.element_format();
  const bool fixed = element.kind == Kind::kFixed;
  const float step = 1.0f / float(1 << element.mantissa_bits);
  const float low = fixed ? float(numbers.int_low) * step : -element.max;
  return {rule_increment(numbers), element.emax, 128 - element.emax, low, element.max};
}

struct MxBlock {
  One one;
  int32_t code;
  bool overflows;
};

// The same as mx_exponents and mx_params, of a block with finite amax.
static BS_INLINE MxBlock mx_block(uint32_t amax, const MxRule& rule) {
  int32_t bits = int32_t(amax);
  if (amax < 0x00800000) bits = int32_t(bits_of(float(bits))) - (149 << 23);
  int32_t s = ((bits + rule.increment) >> 23) - 127 - rule.emax;
  s = s < -127 ? -127 : s > 127 ? 127 : s;
  return {{power(-s), power(s), rule.low, rule.high, 0}, s + 127, s >= rule.overflow};
}

template <class Out>
static BS_COLD void fill(Out* out, size_t n, Out value) {
  for (size_t i = 0; i < n; ++i) out[i] = value;
}

static BS_COLD void saturate_block(float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = saturated<true>(out[i]);
}

template <class E, class R>
static BS_INLINE void fused_fake_block(const float* x, size_t n, const MxRule& rule,
                                       const Ties& ties, const uint32_t* noise,
                                       float* BS_RESTRICT out) {
  const uint32_t amax = amax_run<true>(x, n, 0);
  if (amax >= kInfBits) return fill(out, n, float_of(0x7fc00000));
  const MxBlock block = mx_block(amax, rule);
  fake_run<E, MultiplyNumbers, R>(x, n, block.one, ties, noise, out);
  if (block.overflows) saturate_block(out, n);
}

// Memory is asked for x well before it is needed; beyond the end of x that does no harm.
inline constexpr size_t kAhead = 2048;
static BS_INLINE void fetch(const float* x) {
#if defined(__GNUC__)
  __builtin_prefetch(x);
#else
  (void)x;
#endif
}

// As the general kernels have it, one by one.
template <class E, class R>
static BS_COLD void odd_block(const float* x, size_t n, const Numbers& numbers, const Ties& ties,
                              const uint32_t* noise, float* BS_RESTRICT out) {
  const uint32_t amax = amax_run<false>(x, n, kInfBits - 1);
  int32_t s;
  float factor, scale, lift;
  mx_exponents(numbers, &amax, 1, &s);
  mx_params(numbers, &amax, &s, 1, &factor, &scale, &lift, nullptr);
  const MxRule rule = mx_rule_of(numbers);
  const One one{factor, scale, rule.low, rule.high, 0};
  for (size_t i = 0; i < n; ++i) {
    const float lifted = x[i] * lift;
    fake_run<E, Multiply, R>(&lifted, 1, one, ties, R::kNoisy ? noise + i : noise, out + i);
    out[i] = (bits_of(x[i]) & kMagnitude) >= kInfBits ? x[i] : out[i] / lift;
  }
}

template <class E, class R>
static BS_INLINE void passing_block(const float* x, size_t n, const Numbers& numbers,
                                    const MxRule& rule, const Ties& ties, const uint32_t* noise,
                                    float* BS_RESTRICT out) {
  const uint32_t amax = amax_run<true>(x, n, 0);
  const auto least = uint32_t(rule.emax < 1 ? 1 : rule.emax) << 23;
  if ((amax >= least && amax < kInfBits) || amax == 0) {
    fake_run<E, MultiplyNumbers, R>(x, n, mx_block(amax, rule).one, ties, noise, out);
  } else {
    odd_block<E, R>(x, n, numbers, ties, noise, out);
  }
}

template <class E, class R>
static void fused_passing(const Piece& p, const Numbers& numbers, float* BS_RESTRICT out) {
  uint32_t buffer[kNoiseSize<R>];
  const uint32_t* noise = noise_of<R>(p, buffer);
  const Ties ties = ties_of(numbers);
  const MxRule rule = mx_rule_of(numbers);
  for_blocks(p, [&](size_t s, auto n, size_t) BS_INLINE_LAMBDA {
    const uint32_t* z = R::kNoisy ? noise + s : noise;
    passing_block<E, R>(p.x + s, n, numbers, rule, ties, z, out + s);
    for (size_t i = 0; i < n; i += 16) fetch(p.x + s + i + kAhead);
  });
}

template <class E, class R>
static BS_INLINE void fused_code_block(const float* x, size_t n, const MxRule& rule,
                                       const Ties& ties, const uint32_t* noise,
                                       uint8_t* BS_RESTRICT out, uint8_t* scale) {
  const uint32_t amax = amax_run<true>(x, n, 0);
  *scale = kE8m0Nan;
  if (amax >= kInfBits) return fill(out, n, uint8_t{0});
  const MxBlock block = mx_block(amax, rule);
  *scale = uint8_t(block.code);
  code_run<E, MultiplyNumbers, R>(x, n, block.one, ties, noise, out);
}

template <class E, class R>
static void fused_fake(const Piece& p, const Numbers& numbers, float* BS_RESTRICT out) {
  uint32_t buffer[kNoiseSize<R>];
  const uint32_t* noise = noise_of<R>(p, buffer);
  const Ties ties = ties_of(numbers);
  const MxRule rule = mx_rule_of(numbers);
  for_blocks(p, [&](size_t s, auto n, size_t) BS_INLINE_LAMBDA {
    const uint32_t* z = R::kNoisy ? noise + s : noise;
    fused_fake_block<E, R>(p.x + s, n, rule, ties, z, out + s);
    for (size_t i = 0; i < n; i += 16) fetch(p.x + s + i + kAhead);
  });
}

template <class E, class R>
static void fused_code(const Piece& p, const Numbers& numbers, uint8_t* BS_RESTRICT out,
                       uint8_t* BS_RESTRICT scales) {
  uint32_t buffer[kNoiseSize<R>];
  const uint32_t* noise = noise_of<R>(p, buffer);
  const Ties ties = ties_of(numbers);
  const MxRule rule = mx_rule_of(numbers);
  for_blocks(p, [&](size_t s, auto n, size_t b) BS_INLINE_LAMBDA {
    const uint32_t* z = R::kNoisy ? noise + s : noise;
    fused_code_block<E, R>(p.x + s, n, rule, ties, z, out + s, scales + b);
  });
}
