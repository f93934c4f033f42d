// A node when it runs: its inputs, its outputs, and the runtime's threads.
#pragma once

#include <cstdint>
#include <optional>

#include "c_api.h"
#include "node.h"
#include "parallel.h"
#include "plan.h"

namespace bs::ort {

struct Value {
  const OrtValue* value;
  OrtElementType type;
  Shape shape;
  unsigned char* data;

  int64_t size() const;
  size_t bytes() const;
  Memory memory() const { return {data, bytes()}; }
  Tensor tensor() const;  // an error unless it is of floats
  // How a tensor says that it is none, where a runtime wants one: DynamicQuantize gives it.
  bool is_none() const { return shape.size() == 1 && shape[0] == 0; }
};

size_t element_size(OrtElementType type);
TensorType tensor_type(OrtElementType type);
int64_t count(const Shape& shape);

class Context {
 public:
  Context(const OrtApi& api, OrtKernelContext* context);

  const OrtApi& api() const { return api_; }
  const OrtKernelContext* raw() const { return context_; }

  // Nothing where it is left out.
  std::optional<Value> input(size_t index) const;
  // Memory of an output; nothing where nobody wants it.
  std::optional<Value> output(size_t index, const Shape& shape, OrtElementType type);
  // The runtime's own threads, for as long as this run lasts.
  Host host();

 private:
  const OrtApi& api_;
  OrtKernelContext* context_;
  size_t inputs_ = 0, outputs_ = 0;
};

}  // namespace bs::ort
