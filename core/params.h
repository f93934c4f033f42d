// From the extremes of a block to its scale. Scalar, a few operations a block; the same definitions as
// src/blockscale/numerics/scales.py.
#pragma once

#include "numbers.h"

namespace bs {

// Scale exponent of a block, clamped; amax finite.
int mx_exponent(uint32_t amax_bits, const Numbers& numbers);

// The block scale code (fp8) of a block under the tensor scale t.
uint8_t tensor_scaled_code(uint32_t amax_bits, float t, const Numbers& numbers);

// Tensor scale from the greatest finite magnitude.
float tensor_scale_of(uint32_t amax_bits, const Numbers& numbers);

struct Affine {
  float scale;
  int32_t zero_point;
};
// negative and positive: the extremes as magnitudes.
Affine affine_of(uint32_t negative, uint32_t positive, const Numbers& numbers, TensorType type);

// Value of a scale code of 8 bits (e8m0 or fp8).
float decode_scale(uint8_t code, const Format& format);

float to_half_and_back(float value);
float to_bfloat_and_back(float value);

}  // namespace bs
