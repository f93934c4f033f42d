// MX rounded where it lies: in place of x / 2^s → grid → · 2^s the grid itself is moved to the
// scale of the block, which saves the products. Half to even; blocks whose grid would reach the
// ends of float32 are left to the general kernels. Included once per instruction set, inside its
// namespace.

// What does not change from block to block. `lowest` … `highest` are the scale exponents for which
// every number below is a normal float32, and results are exact in the tensor's type.
struct GridRule {
  int32_t increment, emax, lowest, highest;
  int32_t limit;  // bits of the largest magnitude at s = 0
  int32_t least;  // floats: bits of the least normal number at s = 0; fixed: of the anchor
};

// 1.5 · 2^23 steps: adding it rounds to a multiple of a step, whatever the sign.
template <int F>
static constexpr float kFixedAnchor = 1.5f * float(1 << (23 - F));

template <class E>
static inline GridRule grid_rule_of(const Numbers& numbers, TensorType type) {
  const Format& f = numbers.element_format();
  GridRule rule{};
  rule.increment = rule_increment(numbers);
  rule.emax = f.emax;
  rule.limit = int32_t(bits_of(f.max));
  if constexpr (kIsFixed<E>) {
    rule.least = int32_t(bits_of(kFixedAnchor<E::kFraction>));
    rule.lowest = -126;
    rule.highest = 127 - 1 - (23 - E::kFraction);
  } else {
    rule.least = (f.emin + 127) << 23;
    rule.lowest = -126 - f.emin;
    rule.highest = 127 - (23 - f.mantissa_bits) - f.emax;
  }
  // The largest magnitude stays below 65504.
  if (type == TensorType::kF16) rule.highest = 15 - f.emax;
  return rule;
}

// Whether these numbers may take this way at all.
static inline bool has_grid(const Numbers& numbers) {
  const Format& f = numbers.element_format();
  return can_fuse(numbers) && rounds_plainly(numbers) &&
         (f.kind != Kind::kFixed || numbers.int_low == f.min_code);
}

// Whether they may in the way of AMD Quark: floats round to zeros without a sign, integers go down
// to one more code than up, and of their zeros those that are rounded have no sign.
static inline bool has_passing_grid(const Numbers& numbers) {
  const Format& f = numbers.element_format();
  const auto& signs = numbers.zero_signs;
  const bool fixed = f.kind == Kind::kFixed;
  return can_fuse_passing(numbers) && numbers.rounding == Rounding::kHalfEven &&
         !numbers.nearly_half && signs[0] == fixed && signs[1] == fixed && !signs[2] &&
         (!fixed || numbers.int_low == f.min_code - 1);
}
