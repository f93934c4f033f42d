#include "custom_op.h"

#include <algorithm>
#include <limits>
#include <string>

#include "api.h"
#include "context.h"
#include "inference.h"
#include "node.h"

namespace bs::ort {

namespace {

const CustomOp& self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

// What the runtime holds of a kernel: its own pointer, and what its errors need.
struct Instance {
  const OrtApi& api;
  std::string where;
  std::unique_ptr<Kernel> kernel;
};

OrtStatus* BS_ORT_CALL create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                              void** kernel) {
  const Operator& row = self(op).row;
  *kernel = nullptr;
  std::string where = std::string(row.domain) + "::" + row.name;
  return guarded(*api, where, [&] {
    const Node node(*api, info, row);
    where = node.where();
    node.check();
    *kernel = new Instance{*api, node.where(), row.make(node)};
  });
}

OrtStatus* BS_ORT_CALL compute(void* kernel, OrtKernelContext* raw) {
  const auto& instance = *static_cast<const Instance*>(kernel);
  return guarded(instance.api, instance.where, [&] {
    Context context(instance.api, raw);
    instance.kernel->compute(context);
  });
}

void BS_ORT_CALL destroy(void* kernel) { delete static_cast<Instance*>(kernel); }

// A runtime does not look at what this returns. What is wrong is said when the kernel is made.
OrtStatus* BS_ORT_CALL infer(const OrtCustomOp* op, OrtShapeInferContext* context) {
  const Operator& row = self(op).row;
  const std::string where = std::string(row.domain) + "::" + row.name;
  return guarded(self(op).api, where, [&] { row.infer(Inference(self(op).api, context)); });
}

const char* BS_ORT_CALL name(const OrtCustomOp* op) { return self(op).row.name; }

// nullptr: that of the CPU.
const char* BS_ORT_CALL provider(const OrtCustomOp*) { return nullptr; }

OrtElementType type_of(const CustomOp& op, Takes takes) {
  switch (takes) {
    case Takes::kFloats:
    case Takes::kSame:
      return op.type;
    case Takes::kFloat32:
      return kOrtFloat;
    case Takes::kInt32:
      return kOrtInt32;
    default:
      return kOrtUndefined;
  }
}

size_t BS_ORT_CALL input_count(const OrtCustomOp* op) {
  return self(op).lists ? 1 : self(op).row.inputs.size();
}

size_t BS_ORT_CALL output_count(const OrtCustomOp* op) {
  return self(op).lists ? 1 : self(op).row.outputs.size();
}

OrtElementType BS_ORT_CALL input_type(const OrtCustomOp* op, size_t index) {
  return self(op).lists ? kOrtUndefined : type_of(self(op), self(op).row.inputs[index].takes);
}

OrtElementType BS_ORT_CALL output_type(const OrtCustomOp* op, size_t index) {
  return self(op).lists ? kOrtUndefined : type_of(self(op), self(op).row.outputs[index].takes);
}

OrtCharacteristic BS_ORT_CALL input_characteristic(const OrtCustomOp* op, size_t index) {
  if (self(op).lists) return kOrtVariadic;
  return self(op).row.inputs[index].optional ? kOrtOptional : kOrtRequired;
}

OrtCharacteristic BS_ORT_CALL output_characteristic(const OrtCustomOp* op, size_t index) {
  if (self(op).lists) return kOrtVariadic;
  return self(op).row.outputs[index].optional ? kOrtOptional : kOrtRequired;
}

OrtMemType BS_ORT_CALL memory_type(const OrtCustomOp*, size_t) { return kOrtMemDefault; }

int required(std::span<const Parameter> parameters) {
  return int(std::ranges::count(parameters, false, &Parameter::optional));
}

int BS_ORT_CALL least_inputs(const OrtCustomOp* op) { return required(self(op).row.inputs); }

int BS_ORT_CALL least_outputs(const OrtCustomOp* op) { return required(self(op).row.outputs); }

int BS_ORT_CALL of_any_types(const OrtCustomOp*) { return 0; }

int BS_ORT_CALL first_version(const OrtCustomOp*) { return 1; }

int BS_ORT_CALL last_version(const OrtCustomOp*) { return std::numeric_limits<int>::max(); }

}  // namespace

CustomOp::CustomOp(const OrtApi& api, const Operator& operator_row, OrtElementType x_type,
                   bool infers)
    : OrtCustomOp{},
      api(api),
      row(operator_row),
      type(x_type),
      lists(operator_row.types_from_model && !infers) {
  version = kOrtVersion;
  GetName = name;
  GetExecutionProviderType = provider;
  GetInputType = input_type;
  GetInputTypeCount = input_count;
  GetOutputType = output_type;
  GetOutputTypeCount = output_count;
  KernelDestroy = destroy;
  GetInputCharacteristic = input_characteristic;
  GetOutputCharacteristic = output_characteristic;
  GetInputMemoryType = memory_type;
  GetVariadicInputMinArity = least_inputs;
  GetVariadicInputHomogeneity = of_any_types;
  GetVariadicOutputMinArity = least_outputs;
  GetVariadicOutputHomogeneity = of_any_types;
  CreateKernelV2 = create;
  KernelComputeV2 = compute;
  if (infers) InferOutputShapeFn = infer;
  GetStartVersion = first_version;
  GetEndVersion = last_version;
}

}  // namespace bs::ort
