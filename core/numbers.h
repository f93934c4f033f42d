// Everything that decides a quantized value but the blocks: the C++ side of scheme.Numbers.
#pragma once

#include <bit>
#include <cstdint>

#include "formats.h"

#if defined(_MSC_VER)
#define BS_RESTRICT __restrict
#define BS_INLINE __forceinline
#define BS_INLINE_LAMBDA
#define BS_COLD __declspec(noinline)
#else
#define BS_RESTRICT __restrict__
// Loops become vectors only if all that they call is inlined.
#define BS_INLINE inline __attribute__((always_inline))
#define BS_INLINE_LAMBDA __attribute__((always_inline))
#define BS_COLD __attribute__((noinline, cold))
#endif

namespace bs {

enum class Family : uint8_t { kMx, kAffine, kTensorScaled };

enum class Rule : uint8_t {
  kFloor,
  kCeil,
  kEven,
  kRceil,
  kMse,
  kSymmetric,
  kNoClip,
  kAsymmetric,
  kAmax,
};

enum class Rounding : uint8_t {
  kHalfEven,
  kHalfAway,
  kHalfUp,
  kTowardZero,
  kStochastic,
  kHalfZero,
};

enum class TensorType : uint8_t { kF32, kBf16, kF16 };

enum class Nonfinite : uint8_t { kBlock, kPass, kNanZero, kInfLarge };

inline constexpr int kElementSize[] = {4, 2, 2};
inline constexpr uint32_t kInfBits = 0x7f800000;
inline constexpr uint32_t kMagnitude = 0x7fffffff;
inline constexpr uint32_t kSign = 0x80000000;
inline constexpr float kFloatMax = 0x1.fffffep127f;
inline constexpr int kE8m0Nan = 255;

struct Numbers {
  int element = 0;  // FormatId
  int scale = 0;
  Family family = Family::kMx;
  Rule rule = Rule::kFloor;
  Rounding rounding = Rounding::kHalfEven;
  bool zero_point = false;
  int quant_min = 0;
  int quant_max = 0;
  // From the dialect's row (src/blockscale/numerics/dialects.py says what they mean):
  Nonfinite nonfinite = Nonfinite::kBlock;
  bool saturates = true;
  bool reciprocal = false;
  bool has_codes = true;
  bool clamps = true;
  bool flushes = false;
  bool nearly_half = false;
  uint8_t least_scale = 1;
  uint8_t zero_scale = 0;
  int int_low = 0;                          // least code of integers without a range
  bool zero_signs[3] = {true, true, true};  // x is 0; x / scale underflows; it is rounded to 0
  // A run of sub_block elements has a scale at most 2^sub_shift - 1 powers below its block's.
  int sub_block = 0;
  int sub_shift = 0;

  const Format& element_format() const { return kFormats[element]; }
  const Format& scale_format() const { return kFormats[scale]; }
};

// Whether only what is positive may be rounded past the codes: the least one is -2^(bits-1).
inline bool rounds_up_one_sided(const Numbers& n) {
  return n.family == Family::kMx && n.rule == Rule::kEven && n.element_format().symmetric() &&
         n.int_low < n.element_format().min_code;
}

// Whether v = x * factor (exact, MX; or by definition) rather than x / factor.
inline bool multiplies(const Numbers& n) { return n.family == Family::kMx || n.reciprocal; }

// Half to even, and a zero as it falls out of the arithmetic: signed in floats, +0 in integers.
inline bool rounds_plainly(const Numbers& n) {
  const bool keeps = n.element_format().kind == Kind::kFloat;
  return n.rounding == Rounding::kHalfEven && !n.nearly_half && n.zero_signs[0] == keeps &&
         n.zero_signs[1] == keeps && n.zero_signs[2] == keeps;
}

// Whether a block of this greatest magnitude is NaN throughout.
inline bool spoils(uint32_t amax, Nonfinite nonfinite) {
  return amax > kInfBits || (amax == kInfBits && nonfinite != Nonfinite::kInfLarge);
}

BS_INLINE float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
BS_INLINE uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

// 2^e for -149 <= e <= 127.
inline float power_of_two(int e) {
  return float_of(e >= -126 ? uint32_t(e + 127) << 23 : uint32_t{1} << (e + 149));
}

}  // namespace bs
