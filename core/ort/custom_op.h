// Rows of the table as ONNX Runtime wants them.
#pragma once

#include "c_api.h"
#include "operator.h"

namespace bs::ort {

// For one type of the row's first input where that decides its outputs: a runtime finds the kernel
// by it, and knows the type of the output. With types from the model it is kOrtUndefined.
struct CustomOp : OrtCustomOp {
  CustomOp(const OrtApi& api, const Operator& row, OrtElementType type, bool infers);

  const OrtApi& api;
  const Operator& row;
  const OrtElementType type;
  // All inputs are one list of any types, and so are all outputs. Where types come from the model,
  // a runtime that `infer` tells nothing then derives none of them; it would derive wrong ones.
  const bool lists;
};

}  // namespace bs::ort
