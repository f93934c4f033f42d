// One element: scale it, saturate it, round it to the grid. Plain expressions over single values,
// which the compiler turns into vectors where they are inlined into the loops of kernels.cpp.
// Included once per instruction set, inside its namespace.

// Elements are floats with subnormals, given by their row of FORMATS …
template <int ID>
struct FloatElement {
  static constexpr Format kFormat = kFormats[ID];
  static constexpr int kMantissa = kFormat.mantissa_bits;
};
// … or fixed-point numbers with F fraction bits.
template <int F>
struct FixedElement {
  static constexpr int kFraction = F;
};

template <class E>
inline constexpr bool kIsFixed = false;
template <int F>
inline constexpr bool kIsFixed<FixedElement<F>> = true;

// v = x · factor or x / factor. v may be NaN: where a given scale meets a NaN (it counts as 0), or
// in a NaN block, whose factor is NaN (its codes are 0, and its NaN scale makes the values NaN).
struct Multiply {
  static constexpr bool kNumbersOnly = false;
  static BS_INLINE float apply(float x, float factor) { return x * factor; }
};
struct Divide {
  static constexpr bool kNumbersOnly = false;
  static BS_INLINE float apply(float x, float factor) { return x / factor; }
};
// Where v cannot be NaN.
struct MultiplyNumbers {
  static constexpr bool kNumbersOnly = true;
  static BS_INLINE float apply(float x, float factor) { return x * factor; }
};

// On bits: a comparison of floats here would keep the compiler from making vectors of divisions.
static BS_INLINE float number_or_zero(float v) {
  const uint32_t bits = bits_of(v);
  return float_of((bits & kMagnitude) > kInfBits ? 0 : bits);
}

// How a rounding differs from half to even, which is done first. All-ones masks; index: v is
// negative.
struct Ties {
  uint32_t grow[2] = {0, 0};     // a tie that went toward zero goes away from it
  uint32_t shrink[2] = {0, 0};   // a tie that went away from zero goes toward it
  uint32_t truncate = 0;         // whatever went away from zero goes back
  uint32_t nearly = 0;           // half a step less one ulp goes away from zero too
  uint32_t zero[3] = {0, 0, 0};  // the sign of a result of 0 is kept: Numbers::zero_signs

  // Constants of the element's grid that the compiler shall take for variables: it would make
  // constants anew in every block.
  uint32_t magnitude = kMagnitude;
  uint32_t sign = kSign;
  int32_t infinite = int32_t(kInfBits);
  int32_t largest;   // bits of the largest magnitude
  int32_t smallest;  // bits of the least normal number
  int32_t anchor;    // what turns a binade into the number whose last bit is worth one step of it

  explicit Ties(const Format& format)
      : largest(int32_t(bits_of(format.max))),
        smallest((format.emin + 127) << 23),
        anchor((23 - format.mantissa_bits) << 23) {
#if defined(__GNUC__)
    asm(""
        : "+r"(magnitude), "+r"(sign), "+r"(infinite), "+r"(largest), "+r"(smallest), "+r"(anchor));
#endif
  }
};

static inline Ties ties_of(const Numbers& numbers) {
  Ties ties(numbers.element_format());
  const uint32_t all = 0xffffffff;
  const Rounding rounding = numbers.rounding;
  if (rounding == Rounding::kHalfAway) ties.grow[0] = ties.grow[1] = all;
  if (rounding == Rounding::kHalfUp) ties.grow[0] = ties.shrink[1] = all;
  if (rounding == Rounding::kHalfZero) ties.shrink[0] = ties.shrink[1] = all;
  if (rounding == Rounding::kTowardZero) ties.truncate = all;
  if (rounding == Rounding::kStochastic) ties.truncate = all;
  if (numbers.nearly_half && ties.truncate == 0) ties.nearly = all;
  for (int i = 0; i < 3; ++i) ties.zero[i] = numbers.zero_signs[i] ? all : 0;
  return ties;
}

struct HalfEven {
  static constexpr bool kPlain = true;
  static constexpr bool kNoisy = false;
};
struct ByTies {
  static constexpr bool kPlain = false;
  static constexpr bool kNoisy = false;
};
struct ByNoise {
  static constexpr bool kPlain = false;
  static constexpr bool kNoisy = true;
};

static BS_INLINE uint32_t mask_of(bool condition) { return condition ? 0xffffffffu : 0u; }

struct Rounded {
  float value;   // on the grid, sign included
  int32_t code;  // bit pattern of a float; integer relative to the zero point
};

// |v| and its rounding to a multiple of q, as value and as count of q; common to both element
// kinds. `d` = |v| - r, exact.
template <class R>
static BS_INLINE void settle(float& r, int32_t& k, float d, float q, uint32_t sign,
                             const Ties& ties, uint32_t noise) {
  const float half = q * 0.5f;
  const uint32_t negative = uint32_t(int32_t(sign) >> 31);
  const uint32_t grow = (ties.grow[0] & ~negative) | (ties.grow[1] & negative);
  const uint32_t shrink = (ties.shrink[0] & ~negative) | (ties.shrink[1] & negative);
  const float nearly = float_of(bits_of(half) - 1);
  uint32_t up = (mask_of(d == half) & grow) | (mask_of(d == nearly) & ties.nearly);
  const uint32_t down = (mask_of(d == -half) & shrink) | (mask_of(d < 0) & ties.truncate);
  if constexpr (R::kNoisy) {
    const float rest = d + float_of(bits_of(q) & down);
    // rest / q · 2^32, exact; below 2^32. In two halves, since vectors convert to signed integers
    // only.
    const float scaled = rest * float_of((254u << 23) - bits_of(q)) * 65536.0f;
    const auto high = uint32_t(int32_t(scaled));
    const auto low = uint32_t(int32_t((scaled - float(int32_t(high))) * 65536.0f));
    up = mask_of(noise < ((high << 16) | low));
  }
  r = r + float_of(bits_of(q) & up) - float_of(bits_of(q) & down);
  k = k - int32_t(up) + int32_t(down);
}

// The sign that a result of 0 has.
static BS_INLINE uint32_t sign_of_zero(float x, float v, const Ties& ties) {
  const uint32_t of_v = v == 0 ? ties.zero[1] : ties.zero[2];
  return bits_of(v) & kSign & (x == 0 ? ties.zero[0] : of_v);
}

// Saturates, then rounds: the limits are on the grid, so the order does not matter.
template <class R, int ID>
static BS_INLINE Rounded round_element(FloatElement<ID>, float x, float v, const Ties& ties,
                                       uint32_t noise) {
  using E = FloatElement<ID>;
  constexpr int M = E::kMantissa;
  const uint32_t bits = bits_of(v);
  uint32_t sign = bits & ties.sign;
  int32_t magnitude = int32_t(bits & ties.magnitude);
  magnitude = magnitude < ties.largest ? magnitude : ties.largest;
  int32_t binade = magnitude & ties.infinite;
  binade = binade > ties.smallest ? binade : ties.smallest;
  // Adding a power of two whose last bit is worth one step rounds to a multiple of that step.
  const int32_t anchor_bits = binade + ties.anchor;
  const float anchor = float_of(uint32_t(anchor_bits));
  const float sum = float_of(uint32_t(magnitude)) + anchor;
  float r = sum - anchor;
  int32_t k = int32_t(bits_of(sum)) - anchor_bits;
  if constexpr (!R::kPlain) {
    const float q = float_of(uint32_t(binade - (M << 23)));
    settle<R>(r, k, float_of(uint32_t(magnitude)) - r, q, sign, ties, noise);
    sign = r == 0 ? sign_of_zero(x, v, ties) : sign;
  }
  const int32_t code = k + ((binade - ties.smallest) >> (23 - M));
  return {float_of(bits_of(r) | sign), code | int32_t(sign >> (32 - E::kFormat.bits))};
}

template <class R, int F>
static BS_INLINE Rounded round_element(FixedElement<F>, float x, float v, const Ties& ties,
                                       uint32_t noise) {
  constexpr float anchor = 1.5f * float(1 << (23 - F));
  constexpr float q = 1.0f / float(1 << F);
  const float sum = v + anchor;
  float r = sum - anchor;
  int32_t k = int32_t(bits_of(sum)) - int32_t(bits_of(anchor));
  if constexpr (!R::kPlain) {
    const uint32_t sign = bits_of(v) & kSign;
    float magnitude = float_of(bits_of(r) & kMagnitude);
    int32_t count = k < 0 ? -k : k;
    settle<R>(magnitude, count, float_of(bits_of(v) & kMagnitude) - magnitude, q, sign, ties,
              noise);
    r = float_of(bits_of(magnitude) | (magnitude == 0 ? sign_of_zero(x, v, ties) : sign));
    k = sign ? -count : count;
  }
  return {r, k};
}

// Ten rounds of Philox 4×32 on counter (index / 4, 0, 0), key seed: four words.
static inline void philox(uint64_t counter, uint64_t seed, uint32_t out[4]) {
  uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
    const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c0 = n0, c1 = uint32_t(p1), c2 = n2, c3 = uint32_t(p0);
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static inline void fill_noise(uint64_t index, uint64_t seed, size_t n, uint32_t* out) {
  size_t i = 0;
  while (i < n) {
    uint32_t words[4];
    philox((index + i) >> 2, seed, words);
    for (uint64_t lane = (index + i) & 3; lane < 4 && i < n; ++lane) out[i++] = words[lane];
  }
}
