// y = activation(x · Wᵀ + bias) with a packed W: what torch's operators, ONNX Runtime's and our own
// callers run.
//
//   PackedWeight w(form, codes, params, host);      once, at load: packed_weight.h
//   linear(w, rows, input, output, host);           each call; any number of threads at once
//
// x [rows, K] is multiplied
//   as it is       numbers = null: the product with the decoded weight, summed up in float32
//   quantized      numbers, block: first quantized by them, as Plan::quantize does, to codes of
//                  8 bits or fewer; `given` holds static scales, if they are not found from x
//   as codes       coded: x holds packed codes, `given` their scales: of a norm that quantizes, say
//
// Numerics. Where both operands are MXFP4, MXFP6 or MXINT8 in blocks of 32 the result is the
// canonical dot product (numerics/dot.py), bit for bit, and then bias and activation in float32.
// Otherwise it is that of the decoded operands within (34 + K / 32) · 2^-24 of Σ|x||w| (of
// Σ(|x| + |zero|)|w| where x has a zero point), in one fixed order a result: a row depends neither
// on its batch, nor on threads. It may depend on the instruction set. Products of bfloat16 (x
// bfloat16 as it is, x or W in MXFP8 or FP6) take numbers of x below 2^-126 as 0. A finite result
// beyond float16 or bfloat16 becomes the largest finite.
//
// NaN: a block of W whose scale is NaN makes its column NaN, a row of x that holds NaN or Inf where
// x is quantized to MX is NaN. As it is, x follows IEEE.
//
// Memory: a call takes scratch for x as its kernel wants it, at most kMostScratch bytes and a panel
// a thread (or one row's, if that is larger), and gives it back. It refuses (ArgumentError) before
// it touches anything; what it runs on the host throws nothing.
#pragma once

#include <cstdint>

#include "packed_weight.h"
#include "parallel.h"
#include "plan.h"

namespace bs {

struct LinearInput {
  Memory x;
  int type;        // TensorType
  int64_t stride;  // elements from row to row, at least K; codes are dense
  const Numbers* numbers = nullptr;
  // Of x's scales: along K (0 is all of it), and rows (1, or 0: one scale for all).
  int64_t block = 0;
  int64_t block_rows = 1;
  bool coded = false;
  Parameters given{};
};

struct LinearOutput {
  Memory y;
  int type;
  int64_t stride;                // elements from row to row, at least N
  const Memory* bias = nullptr;  // N float32
  Activation activation = Activation::kNone;
};

inline constexpr size_t kMostScratch = 32 << 20;

void linear(const PackedWeight& weight, int64_t rows, const LinearInput& input,
            const LinearOutput& output, const Host& host);

}  // namespace bs
