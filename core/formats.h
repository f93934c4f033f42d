// The rows of FORMATS (src/blockscale/numerics/formats.py) as C++; the table itself is generated.
#pragma once

#include <cstdint>

namespace bs {

enum class Kind : uint8_t { kFloat, kFixed, kExponent };
enum class Specials : uint8_t { kNone, kNan, kIeee };

struct Format {
  const char* name;
  Kind kind;
  int bits;
  int exponent_bits;
  int mantissa_bits;  // of a float; fraction bits of a fixed-point number
  int bias;
  Specials specials;
  bool is_signed;
  int min_code;  // fixed only: what quantizing produces
  int max_code;
  int emax;  // exponent of the largest finite magnitude
  int emin;  // exponent of the smallest normal number
  float max;

  constexpr bool packed() const { return bits < 8; }
  // Integers of which the least one is never produced: those that share a power of two.
  constexpr bool symmetric() const { return kind == Kind::kFixed && min_code == -max_code; }
  // Bits behind the leading one of the largest value.
  constexpr int fraction_bits() const { return mantissa_bits + (kind == Kind::kFixed ? emax : 0); }
  // Bits that a code takes in memory.
  constexpr int stored_bits() const { return bits <= 8 ? bits : 16; }
};

enum FormatId : int {
#define BS_FORMAT(name, ...) k_##name,
#include "generated/formats.inc"
#undef BS_FORMAT
  kFormatCount
};

inline constexpr Format kFormats[] = {
#define BS_FORMAT(name, kind, ...) {#name, Kind::kind, __VA_ARGS__},
#include "generated/formats.inc"
#undef BS_FORMAT
};

}  // namespace bs
