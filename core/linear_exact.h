// The canonical dot product where the kernels' scales would leave the normal floats: slowly,
// through float64, which holds every one of its numbers.
#pragma once

#include <cstdint>

#include "products.h"

namespace bs {

// Bits after the point of a code's integer form: value = integer · 2^-m.
int fraction_bits(Code code);

// A stored code's integer.
int code_integer(Code code, int at);

// The integers of one group's block, to[lane][k].
void block_integers(const WeightView& w, size_t group, size_t block,
                    int16_t (&to)[kLanes][kBlockOfK]);

// The sums of a row with every column of a group. `x`: integers of all blocks of K.
void exact_sums(const WeightView& w, size_t group, const int16_t* x, const uint8_t* x_scales,
                int fraction, float* to);

}  // namespace bs
