// A runtime of a few lines behind the function table of ort/c_api.h, so that kernels run under
// sanitizers. Tasks of ParallelFor run on the pool of the core; the only operator to invoke is
// Gemm.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ort/c_api.h"
#include "ort/context.h"
#include "parallel.h"

namespace fake {

using Shape = std::vector<int64_t>;
using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>>;
using Attributes = std::map<std::string, Attribute>;

struct Type {
  OrtElementType type = kOrtUndefined;  // of what is left out
  std::optional<Shape> shape;
  std::vector<std::string> names;
};

}  // namespace fake

struct OrtStatus {
  std::string message;
};

struct OrtSessionOptions {
  std::vector<OrtCustomOpDomain*> domains;
};

struct OrtCustomOpDomain {
  std::string name;
  std::vector<const OrtCustomOp*> ops;
};

struct OrtMemoryInfo {};

struct OrtValue {
  OrtElementType type = kOrtUndefined;
  fake::Shape shape;
  std::vector<unsigned char> own;
  void* data = nullptr;
};

struct OrtTensorTypeAndShapeInfo : fake::Type {};
struct OrtTypeInfo {
  OrtTensorTypeAndShapeInfo tensor;
};

struct OrtKernelInfo {
  fake::Attributes attributes;
  std::vector<fake::Type> inputs, outputs;
};

struct OrtKernelContext {
  std::vector<const OrtValue*> inputs;             // nullptr where left out
  std::vector<std::unique_ptr<OrtValue>> outputs;  // made by the kernel
  std::vector<OrtElementType> output_types;
};

struct OrtShapeInferContext {
  fake::Attributes attributes;
  std::vector<OrtTensorTypeAndShapeInfo> inputs, outputs;
};

struct OrtOpAttr {
  fake::Attribute value;
};

struct OrtOp {
  bool transposed = false;
};

namespace fake {

inline OrtStatus* no(const std::string& message) { return new OrtStatus{message}; }

inline std::unique_ptr<OrtValue> tensor(OrtElementType type, const Shape& shape) {
  auto made = std::make_unique<OrtValue>();
  made->type = type;
  made->shape = shape;
  made->own.resize(size_t(bs::ort::count(shape)) * bs::ort::element_size(type));
  made->data = made->own.data();
  return made;
}

template <class T>
const T* find(const Attributes& attributes, const char* name) {
  const auto found = attributes.find(name);
  return found == attributes.end() ? nullptr : std::get_if<T>(&found->second);
}

// Statuses, domains, values.
inline void add_objects(OrtApi& t) {
  t.CreateStatus = [](OrtErrorCode, const char* message) { return no(message); };
  t.GetErrorMessage = [](const OrtStatus* status) { return status->message.c_str(); };
  t.ReleaseStatus = [](OrtStatus* status) { delete status; };
  t.CreateCustomOpDomain = [](const char* name, OrtCustomOpDomain** out) -> OrtStatus* {
    *out = new OrtCustomOpDomain{name, {}};
    return nullptr;
  };
  t.CustomOpDomain_Add = [](OrtCustomOpDomain* domain, const OrtCustomOp* op) -> OrtStatus* {
    domain->ops.push_back(op);
    return nullptr;
  };
  t.AddCustomOpDomain = [](OrtSessionOptions* to, OrtCustomOpDomain* domain) -> OrtStatus* {
    to->domains.push_back(domain);
    return nullptr;
  };
  t.CreateTensorWithDataAsOrtValue = [](const OrtMemoryInfo*, void* data, size_t,
                                        const int64_t* shape, size_t rank, OrtElementType type,
                                        OrtValue** out) -> OrtStatus* {
    *out = new OrtValue{type, Shape(shape, shape + rank), {}, data};
    return nullptr;
  };
  t.ReleaseValue = [](OrtValue* value) { delete value; };
  t.GetTensorMutableData = [](OrtValue* value, void** out) -> OrtStatus* {
    *out = value->data;
    return nullptr;
  };
  t.CreateCpuMemoryInfo = [](OrtAllocatorType, OrtMemType, OrtMemoryInfo** out) -> OrtStatus* {
    *out = new OrtMemoryInfo;
    return nullptr;
  };
  t.ReleaseMemoryInfo = [](OrtMemoryInfo* info) { delete info; };
}

// Types and shapes.
inline void add_types(OrtApi& t) {
  t.CastTypeInfoToTensorInfo = [](const OrtTypeInfo* info,
                                  const OrtTensorTypeAndShapeInfo** out) -> OrtStatus* {
    *out = &info->tensor;
    return nullptr;
  };
  t.ReleaseTypeInfo = [](OrtTypeInfo* info) { delete info; };
  t.CreateTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo** out) -> OrtStatus* {
    *out = new OrtTensorTypeAndShapeInfo;
    return nullptr;
  };
  t.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) { delete info; };
  t.GetTensorTypeAndShape = [](const OrtValue* value,
                               OrtTensorTypeAndShapeInfo** out) -> OrtStatus* {
    *out = new OrtTensorTypeAndShapeInfo{{value->type, value->shape, {}}};
    return nullptr;
  };
  t.SetTensorElementType = [](OrtTensorTypeAndShapeInfo* info, OrtElementType type) -> OrtStatus* {
    info->type = type;
    return nullptr;
  };
  t.GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info,
                              OrtElementType* out) -> OrtStatus* {
    *out = info->type;
    return nullptr;
  };
  t.SetDimensions = [](OrtTensorTypeAndShapeInfo* info, const int64_t* dims,
                       size_t count) -> OrtStatus* {
    info->shape = Shape(dims, dims + count);
    return nullptr;
  };
  t.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* out) -> OrtStatus* {
    *out = info->shape ? info->shape->size() : 0;
    return nullptr;
  };
  t.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* dims,
                       size_t count) -> OrtStatus* {
    for (size_t i = 0; i < count; ++i) dims[i] = (*info->shape)[i];
    return nullptr;
  };
  t.GetSymbolicDimensions = [](const OrtTensorTypeAndShapeInfo* info, const char** names,
                               size_t count) -> OrtStatus* {
    for (size_t i = 0; i < count; ++i)
      names[i] = i < info->names.size() ? info->names[i].c_str() : "";
    return nullptr;
  };
  t.SetSymbolicDimensions = [](OrtTensorTypeAndShapeInfo* info, const char** names,
                               size_t count) -> OrtStatus* {
    info->names.assign(names, names + count);
    return nullptr;
  };
}

// Attributes.
inline void add_attributes(OrtApi& t) {
  t.KernelInfoGetAttribute_float = [](const OrtKernelInfo* info, const char* name,
                                      float* out) -> OrtStatus* {
    const auto* found = find<float>(info->attributes, name);
    if (!found) return no("no such float");
    *out = *found;
    return nullptr;
  };
  t.KernelInfoGetAttribute_int64 = [](const OrtKernelInfo* info, const char* name,
                                      int64_t* out) -> OrtStatus* {
    const auto* found = find<int64_t>(info->attributes, name);
    if (!found) return no("no such integer");
    *out = *found;
    return nullptr;
  };
  t.KernelInfoGetAttribute_string = [](const OrtKernelInfo* info, const char* name, char* out,
                                       size_t* size) -> OrtStatus* {
    const auto* found = find<std::string>(info->attributes, name);
    if (!found) return no("no such string");
    if (out) found->copy(out, found->size());
    *size = found->size() + 1;
    return nullptr;
  };
  t.KernelInfoGetAttributeArray_float = [](const OrtKernelInfo*, const char*, float*, size_t*) {
    return no("no such list");
  };
  t.KernelInfoGetAttributeArray_int64 = [](const OrtKernelInfo* info, const char* name,
                                           int64_t* out, size_t* size) -> OrtStatus* {
    const auto* found = find<std::vector<int64_t>>(info->attributes, name);
    if (!found) return no("no such list");
    for (size_t i = 0; out && i < found->size(); ++i) out[i] = (*found)[i];
    *size = found->size();
    return nullptr;
  };
  t.KernelInfo_GetNodeName = [](const OrtKernelInfo*, char* out, size_t* size) -> OrtStatus* {
    if (out) std::string("node").copy(out, 4);
    *size = 5;
    return nullptr;
  };
}

// A node that is made, and one that runs.
inline void add_nodes(OrtApi& t) {
  t.KernelInfo_GetInputCount = [](const OrtKernelInfo* info, size_t* out) -> OrtStatus* {
    *out = info->inputs.size();
    return nullptr;
  };
  t.KernelInfo_GetOutputCount = [](const OrtKernelInfo* info, size_t* out) -> OrtStatus* {
    *out = info->outputs.size();
    return nullptr;
  };
  t.KernelInfo_GetInputTypeInfo = [](const OrtKernelInfo* info, size_t index,
                                     OrtTypeInfo** out) -> OrtStatus* {
    if (!info->inputs.at(index).type) return no("it has no type");
    *out = new OrtTypeInfo{{info->inputs[index]}};
    return nullptr;
  };
  t.KernelInfo_GetOutputTypeInfo = [](const OrtKernelInfo* info, size_t index,
                                      OrtTypeInfo** out) -> OrtStatus* {
    if (!info->outputs.at(index).type) return no("it has no type");
    *out = new OrtTypeInfo{{info->outputs[index]}};
    return nullptr;
  };
  t.KernelContext_GetInputCount = [](const OrtKernelContext* context, size_t* out) -> OrtStatus* {
    *out = context->inputs.size();
    return nullptr;
  };
  t.KernelContext_GetOutputCount = [](const OrtKernelContext* context, size_t* out) -> OrtStatus* {
    *out = context->output_types.size();
    return nullptr;
  };
  t.KernelContext_GetInput = [](const OrtKernelContext* context, size_t index,
                                const OrtValue** out) -> OrtStatus* {
    *out = context->inputs.at(index);
    return nullptr;
  };
  t.KernelContext_GetOutput = [](OrtKernelContext* context, size_t index, const int64_t* dims,
                                 size_t rank, OrtValue** out) -> OrtStatus* {
    *out = nullptr;
    if (context->output_types.at(index) == kOrtUndefined) return nullptr;  // nobody wants it
    auto& place = context->outputs.at(index);
    place = tensor(context->output_types[index], Shape(dims, dims + rank));
    *out = place.get();
    return nullptr;
  };
  t.KernelContext_ParallelFor = [](const OrtKernelContext*, void (*task)(void*, size_t),
                                   size_t total, size_t, void* argument) -> OrtStatus* {
    struct Work {
      void (*task)(void*, size_t);
      void* argument;
    } work{task, argument};
    const bs::Host host = bs::pool_host(4);
    host.run(
        host.context, int(total),
        [](void* given, int i) {
          const auto& w = *static_cast<Work*>(given);
          w.task(w.argument, size_t(i));
        },
        &work);
    return nullptr;
  };
}

// The operator that MatMul calls.
inline void add_gemm(OrtApi& t) {
  t.CreateOpAttr = [](const char* name, const void* data, int, OrtOpAttrType type,
                      OrtOpAttr** out) -> OrtStatus* {
    const bool trans = std::string(name) == "transB" && type == kOrtAttrInt;
    *out = new OrtOpAttr{trans ? *static_cast<const int64_t*>(data) : int64_t{0}};
    return nullptr;
  };
  t.ReleaseOpAttr = [](OrtOpAttr* attribute) { delete attribute; };
  t.CreateOp = [](const OrtKernelInfo*, const char*, const char*, int, const char**,
                  const OrtElementType*, int, const OrtOpAttr* const* attributes, int count, int,
                  int, OrtOp** out) -> OrtStatus* {
    *out = new OrtOp;
    for (int i = 0; i < count; ++i)
      (*out)->transposed |= attributes[i]->value == Attribute(int64_t{1});
    return nullptr;
  };
  t.ReleaseOp = [](OrtOp* op) { delete op; };
  t.InvokeOp = [](const OrtKernelContext*, const OrtOp* op, const OrtValue* const* inputs,
                  int input_count, OrtValue* const* outputs, int) -> OrtStatus* {
    const auto* x = static_cast<const float*>(inputs[0]->data);
    const auto* w = static_cast<const float*>(inputs[1]->data);
    const auto* bias = input_count > 2 ? static_cast<const float*>(inputs[2]->data) : nullptr;
    auto* y = static_cast<float*>(outputs[0]->data);
    const int64_t m = inputs[0]->shape[0], k = inputs[0]->shape[1], n = outputs[0]->shape[1];
    for (int64_t i = 0; i < m * n; ++i) {
      float sum = bias ? bias[i % n] : 0;
      for (int64_t j = 0; j < k; ++j) {
        sum += x[i / n * k + j] * (op->transposed ? w[i % n * k + j] : w[j * n + i % n]);
      }
      y[i] = sum;
    }
    return nullptr;
  };
}

// Shapes of outputs.
inline void add_inference(OrtApi& t) {
  t.ShapeInferContext_GetInputCount = [](const OrtShapeInferContext* context,
                                         size_t* out) -> OrtStatus* {
    *out = context->inputs.size();
    return nullptr;
  };
  t.ShapeInferContext_GetInputTypeShape = [](const OrtShapeInferContext* context, size_t index,
                                             OrtTensorTypeAndShapeInfo** out) -> OrtStatus* {
    if (!context->inputs.at(index).type) return no("it is left out");
    *out = const_cast<OrtTensorTypeAndShapeInfo*>(&context->inputs[index]);
    return nullptr;
  };
  t.ShapeInferContext_GetAttribute = [](const OrtShapeInferContext* context, const char* name,
                                        const OrtOpAttr** out) -> OrtStatus* {
    const auto found = context->attributes.find(name);
    if (found == context->attributes.end()) return no("no such attribute");
    *out = reinterpret_cast<const OrtOpAttr*>(&found->second);
    return nullptr;
  };
  t.ReadOpAttr = [](const OrtOpAttr* attribute, OrtOpAttrType type, void* data, size_t length,
                    size_t* out) -> OrtStatus* {
    const void* from = nullptr;
    size_t size = 0;
    if (const auto* i = std::get_if<int64_t>(&attribute->value); i && type == kOrtAttrInt) {
      from = i, size = sizeof *i;
    } else if (const auto* s = std::get_if<std::string>(&attribute->value);
               s && type == kOrtAttrString) {
      from = s->c_str(), size = s->size() + 1;
    } else if (const auto* all = std::get_if<std::vector<int64_t>>(&attribute->value);
               all && type == kOrtAttrInts) {
      from = all->data(), size = all->size() * sizeof(int64_t);
    } else {
      return no("of another type");
    }
    *out = size;
    if (length < size) return no("not enough room");
    if (size != 0) std::copy_n(static_cast<const char*>(from), size, static_cast<char*>(data));
    return nullptr;
  };
  t.ShapeInferContext_SetOutputTypeShape = [](const OrtShapeInferContext* context, size_t index,
                                              const OrtTensorTypeAndShapeInfo* info) -> OrtStatus* {
    auto& outputs = const_cast<OrtShapeInferContext*>(context)->outputs;
    if (index >= outputs.size()) std::abort();  // as the real one does
    outputs[index] = *info;
    return nullptr;
  };
}

// The table; what no kernel of ours calls stays null.
inline const OrtApi& api() {
  static const OrtApi table = [] {
    OrtApi t{};
    for (const auto add :
         {add_objects, add_types, add_attributes, add_nodes, add_gemm, add_inference})
      add(t);
    return t;
  }();
  return table;
}

inline const OrtApiBase& base() {
  static const OrtApiBase table{[](uint32_t) { return &api(); }, [] { return "1.24.0"; }};
  return table;
}

}  // namespace fake
