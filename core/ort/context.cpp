#include "context.h"

#include "api.h"
#include "argument_error.h"

namespace bs::ort {

namespace {

struct Work {
  Task task;
  void* argument;
};

void work_on(void* work, size_t index) {
  const auto& given = *static_cast<const Work*>(work);
  given.task(given.argument, int(index));
}

// A runtime that refuses to share its threads is no reason not to work.
void run(void* context, int tasks, Task task, void* argument) {
  const auto& self = *static_cast<const Context*>(context);
  Work work{task, argument};
  OrtStatus* status =
      self.api().KernelContext_ParallelFor(self.raw(), work_on, size_t(tasks), 0, &work);
  if (succeeds(self.api(), status)) return;
  for (int i = 0; i < tasks; ++i) task(argument, i);
}

}  // namespace

int64_t count(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

size_t element_size(OrtElementType type) {
  switch (type) {
    case kOrtUint8:
    case kOrtInt8:
      return 1;
    case kOrtFloat:
    case kOrtInt32:
      return 4;
    default:
      return 2;
  }
}

TensorType tensor_type(OrtElementType type) {
  switch (type) {
    case kOrtFloat:
      return TensorType::kF32;
    case kOrtBfloat16:
      return TensorType::kBf16;
    case kOrtFloat16:
      return TensorType::kF16;
    default:
      refuse("x", name_of(type), "float32, float16 or bfloat16");
  }
}

int64_t Value::size() const { return count(shape); }
size_t Value::bytes() const { return size_t(size()) * element_size(type); }
Tensor Value::tensor() const { return {memory(), int(tensor_type(type)), {}}; }

Context::Context(const OrtApi& api, OrtKernelContext* context) : api_(api), context_(context) {
  check(api, api.KernelContext_GetInputCount(context, &inputs_));
  check(api, api.KernelContext_GetOutputCount(context, &outputs_));
}

std::optional<Value> Context::input(size_t index) const {
  if (index >= inputs_) return {};
  const OrtValue* value = nullptr;
  check(api_, api_.KernelContext_GetInput(context_, index, &value));
  if (value == nullptr) return {};
  OrtTensorTypeAndShapeInfo* made = nullptr;
  check(api_, api_.GetTensorTypeAndShape(value, &made));
  const Owned<OrtTensorTypeAndShapeInfo> info(made, api_.ReleaseTensorTypeAndShapeInfo);
  Value result{value, kOrtUndefined, {}, nullptr};
  check(api_, api_.GetTensorElementType(made, &result.type));
  size_t rank = 0;
  check(api_, api_.GetDimensionsCount(made, &rank));
  result.shape.resize(rank);
  if (rank != 0) check(api_, api_.GetDimensions(made, result.shape.data(), rank));
  void* data = nullptr;  // of an input it is only read
  check(api_, api_.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  result.data = static_cast<unsigned char*>(data);
  return result;
}

std::optional<Value> Context::output(size_t index, const Shape& shape, OrtElementType type) {
  if (index >= outputs_) return {};
  OrtValue* value = nullptr;
  check(api_, api_.KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
  if (value == nullptr) return {};
  void* data = nullptr;
  check(api_, api_.GetTensorMutableData(value, &data));
  return Value{value, type, shape, static_cast<unsigned char*>(data)};
}

Host Context::host() { return {run, this, pool_host(0).threads}; }

}  // namespace bs::ort
