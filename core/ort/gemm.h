// ONNX Runtime's own float32 product, called from a kernel: y = x · W + bias, or x · Wᵀ + bias.
#pragma once

#include <cstdint>

#include "context.h"
#include "node.h"

namespace bs::ort {

class Gemm {
 public:
  Gemm(const Node& node, bool transposed, bool biased);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // x [m, k], w [k, n] or [n, k], bias [n] or nullptr, y [m, n]; no size is 0.
  void run(const Context& context, const float* x, const float* w, const float* bias, float* y,
           int64_t m, int64_t k, int64_t n) const;

 private:
  const OrtApi& api_;
  OrtOp* op_ = nullptr;
  const bool transposed_;
};

}  // namespace bs::ort
