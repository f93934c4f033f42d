// float16 and bfloat16 as bits, without help of the processor. Half to even; a finite value that
// overflows becomes the largest finite number, as every output of ours does; NaN and Inf stay.
//
// `static`: units compiled for different instruction sets must not share these.
#pragma once

#include "numbers.h"

namespace bs {

static BS_INLINE float bfloat_to_float(uint16_t h) { return float_of(uint32_t(h) << 16); }

static BS_INLINE uint16_t float_to_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & kMagnitude;
  const uint32_t rounded = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
  const uint32_t finite = rounded > 0x7f7f ? 0x7f7f : rounded;
  const uint32_t result = magnitude > kInfBits ? 0x7fc0 : magnitude == kInfBits ? 0x7f80 : finite;
  return uint16_t(result | ((bits >> 16) & 0x8000));
}

static BS_INLINE float half_to_float(uint16_t h) {
  const uint32_t magnitude = h & 0x7fff;
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  // Subnormals: an exact product. Normals: exponents moved. Inf and NaN: exponent all ones.
  const uint32_t small = bits_of(float(magnitude) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
  const uint32_t special = (magnitude << 13) | kInfBits;
  const uint32_t finite = magnitude < 0x0400 ? small : normal;
  return float_of((magnitude >= 0x7c00 ? special : finite) | sign);
}

static BS_INLINE uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & kMagnitude;
  // Below 2^-14: adding 0.5 leaves the float16 subnormal in the low bits, rounded half to even.
  const uint32_t small = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32_t normal = (magnitude - ((127 - 15) << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t finite = magnitude < 0x38800000 ? small : normal;
  const uint32_t saturated = finite > 0x7bff || magnitude >= 0x47800000 ? 0x7bff : finite;
  const uint32_t result = magnitude > kInfBits    ? 0x7e00
                          : magnitude == kInfBits ? 0x7c00
                                                  : saturated;
  return uint16_t(result | ((bits >> 16) & 0x8000));
}

}  // namespace bs
