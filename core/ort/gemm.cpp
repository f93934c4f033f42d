#include "gemm.h"

#include "api.h"

namespace bs::ort {

namespace {

using Attribute = Owned<OrtOpAttr>;

Attribute attribute(const OrtApi& api, const char* name, OrtOpAttrType type, const void* value) {
  OrtOpAttr* made = nullptr;
  check(api, api.CreateOpAttr(name, value, 1, type, &made));
  return Attribute(made, api.ReleaseOpAttr);
}

Owned<OrtValue> view(const OrtApi& api, const OrtMemoryInfo* where, const float* data,
                     const Shape& shape) {
  OrtValue* made = nullptr;
  check(api, api.CreateTensorWithDataAsOrtValue(where, const_cast<float*>(data),
                                                size_t(count(shape)) * sizeof(float), shape.data(),
                                                shape.size(), kOrtFloat, &made));
  return {made, api.ReleaseValue};
}

}  // namespace

Gemm::Gemm(const Node& node, bool transposed, bool biased)
    : api_(node.api()), transposed_(transposed) {
  const float one = 1;
  const int64_t no = 0, trans_b = transposed;
  const Attribute alpha = attribute(api_, "alpha", kOrtAttrFloat, &one);
  const Attribute beta = attribute(api_, "beta", kOrtAttrFloat, &one);
  const Attribute first = attribute(api_, "transA", kOrtAttrInt, &no);
  const Attribute second = attribute(api_, "transB", kOrtAttrInt, &trans_b);
  const OrtOpAttr* attributes[] = {alpha.get(), beta.get(), first.get(), second.get()};
  const char* type_names[] = {"T"};
  const OrtElementType types[] = {kOrtFloat};
  check(api_, api_.CreateOp(node.info(), "Gemm", "", 13, type_names, types, 1, attributes, 4,
                            biased ? 3 : 2, 1, &op_));
}

Gemm::~Gemm() {
  if (op_ != nullptr) api_.ReleaseOp(op_);
}

void Gemm::run(const Context& context, const float* x, const float* w, const float* bias, float* y,
               int64_t m, int64_t k, int64_t n) const {
  OrtMemoryInfo* made = nullptr;
  check(api_, api_.CreateCpuMemoryInfo(kOrtDeviceAllocator, kOrtMemDefault, &made));
  const Owned<OrtMemoryInfo> where(made, api_.ReleaseMemoryInfo);
  const auto a = view(api_, made, x, {m, k});
  const auto b = view(api_, made, w, transposed_ ? Shape{n, k} : Shape{k, n});
  const auto c = view(api_, made, bias ? bias : y, {n});
  const auto out = view(api_, made, y, {m, n});
  const OrtValue* inputs[] = {a.get(), b.get(), c.get()};
  OrtValue* outputs[] = {out.get()};
  check(api_, api_.InvokeOp(context.raw(), op_, inputs, bias ? 3 : 2, outputs, 1));
}

}  // namespace bs::ort
