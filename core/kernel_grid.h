// MX rounded where it lies: in place of x / 2^s → grid → · 2^s the grid itself is moved to the
// scale of the block, which saves the products. Blocks with NaN or Inf, and those whose grid would
// reach the ends of float32, are left to the general kernels. Included once per instruction set,
// inside its namespace.

// How numbers are rounded on such a grid.
enum class Way : uint8_t {
  kNone,   // not at all
  kPlain,  // half to even, a zero as it falls out of the arithmetic
  kZeros,  // half to even; floats: every zero is +0; fixed: zeros of x and of x / 2^s have its sign
  kSigns,  // fixed: half to even; a zero has the sign of x
  kTies,   // fixed: half away from zero or half up; a zero has the sign of x
};

static inline Way way_of(const Numbers& numbers) {
  if (numbers.family != Family::kMx || numbers.rule == Rule::kMse || numbers.nearly_half ||
      numbers.sub_shift > 7 || rounds_up_one_sided(numbers)) {
    return Way::kNone;
  }
  if (rounds_plainly(numbers)) return Way::kPlain;
  const bool fixed = numbers.element_format().kind == Kind::kFixed;
  const bool of_zero = numbers.zero_signs[0], of_underflow = numbers.zero_signs[1],
             of_tiny = numbers.zero_signs[2];
  if (numbers.rounding == Rounding::kHalfEven) {
    if (!fixed) return of_zero || of_underflow || of_tiny ? Way::kNone : Way::kZeros;
    return !of_zero || !of_underflow ? Way::kNone : of_tiny ? Way::kSigns : Way::kZeros;
  }
  const bool ties =
      numbers.rounding == Rounding::kHalfAway || numbers.rounding == Rounding::kHalfUp;
  return fixed && ties && of_zero && of_underflow && of_tiny ? Way::kTies : Way::kNone;
}

// What does not change from block to block. `lowest` … `highest` are the scale exponents for which
// every number below is a normal float32, and results are exact in the tensor's type.
struct GridRule {
  int32_t increment, emax, lowest, highest;
  int32_t limit;       // bits of the largest magnitude at s = 0
  int32_t most_below;  // of a sub-block's exponent: how far below its block's
  int32_t least;       // floats: bits of the least normal number at s = 0; fixed: of the anchor
  // Of fixed-point numbers:
  float bottom;      // the least number by the greatest, less than half a step from where it is
  int32_t measured;  // kTies: what of v is rounded half up: its magnitude, or all of it
};

// 1.5 · 2^23 steps: adding it rounds to a multiple of a step, whatever the sign. Of half as many
// the last bit is worth half a step.
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
    const bool ties = way_of(numbers) == Way::kTies;
    rule.least = int32_t(bits_of(kFixedAnchor<E::kFraction>)) - (ties ? 1 << 23 : 0);
    rule.lowest = -126;
    rule.highest = 127 - 1 - (23 - E::kFraction);
    rule.bottom = float(numbers.int_low) / float(f.max_code);
    rule.measured = numbers.rounding == Rounding::kHalfAway ? int32_t(kMagnitude) : -1;
  } else {
    rule.least = (f.emin + 127) << 23;
    rule.lowest = -126 - f.emin;
    rule.highest = 127 - (23 - f.mantissa_bits) - f.emax;
  }
  rule.most_below = (1 << numbers.sub_shift) - 1;
  rule.lowest += rule.most_below;
  // Subnormals are less than half a step: they become 0, as what counts as 0 does.
  if (numbers.flushes) rule.lowest += f.mantissa_bits + 1;
  // The largest magnitude stays below 65504.
  const bool whole = kIsFixed<E> && numbers.int_low < f.min_code;
  if (type == TensorType::kF16) rule.highest = 15 - f.emax - int(whole);
  return rule;
}

// Whether every result has few enough bits for a tensor's type.
static inline bool exact_in(TensorType type, const Numbers& numbers) {
  constexpr int most[] = {23, 7, 10};
  return numbers.element_format().fraction_bits() <= most[int(type)];
}
