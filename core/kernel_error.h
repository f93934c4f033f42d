// Squared errors of blocks at three scales, for the `mse` rule. In double, as the definition is:
// every operation rounds once and the sum goes on in ascending order. Included once per instruction
// set, inside its namespace.

static inline double double_of(uint64_t bits) { return std::bit_cast<double>(bits); }
static inline uint64_t bits_of_double(double value) { return std::bit_cast<uint64_t>(value); }

static inline double rounded_double(double v, const Format& element, Rounding rounding) {
  const uint64_t sign = bits_of_double(v) & (uint64_t{1} << 63);
  const double magnitude = double_of(bits_of_double(v) ^ sign);
  int64_t exponent = int64_t(bits_of_double(magnitude) >> 52) - 1023;
  if (element.kind == Kind::kFixed || exponent < element.emin) exponent = element.emin;
  const double q = double_of(uint64_t(exponent - element.mantissa_bits + 1023) << 52);
  // Adding 2^52 steps rounds to a multiple of a step, half to even.
  const double anchor = q * 0x1p52;
  double r = (magnitude + anchor) - anchor;
  const double d = magnitude - r;
  const bool negative = sign != 0;
  const bool tie_down = d == q * 0.5, tie_up = d == q * -0.5;
  switch (rounding) {
    case Rounding::kHalfAway:
      if (tie_down) r += q;
      break;
    case Rounding::kHalfUp:
      if (tie_down && !negative) r += q;
      if (tie_up && negative) r -= q;
      break;
    case Rounding::kHalfZero:
      if (tie_up) r -= q;
      break;
    case Rounding::kTowardZero:
      if (d < 0) r -= q;
      break;
    default:
      break;  // half to even; stochastic rounding chooses its scale by it too
  }
  const double top = double(element.max);
  r = r > top ? top : r;
  return double_of(bits_of_double(r) | sign);
}

static inline void add_errors(double x, const Format& element, Rounding rounding,
                              const double* scales, double* sums) {
  for (int candidate = 0; candidate < 3; ++candidate) {
    const double scale = scales[candidate];
    const double error = x - rounded_double(x / scale, element, rounding) * scale;
    sums[candidate] += error * error;
  }
}

static void errors(const Piece& p, const Numbers& numbers, const double* scales, double* sums) {
  const Format element = numbers.element_format();
  size_t block = 0;
  size_t room = p.across == Across::kColumns ? 1 : p.block - p.skip;
  for (size_t i = 0; i < p.size; ++i) {
    if (room == 0) {
      ++block;
      room = p.across == Across::kColumns ? 1 : p.block;
    }
    --room;
    add_errors(double(p.x[i]), element, numbers.rounding, scales + 3 * block, sums + 3 * block);
  }
}
