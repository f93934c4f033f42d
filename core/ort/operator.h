// What an operator is: one row, its inputs and outputs, and the function that makes its kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "c_api.h"

namespace bs::ort {

class Node;
class Context;
class Inference;

// A kernel is made when a session is, and never changes: runs call it from many threads at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void compute(Context& context) const = 0;
};

enum class Takes : uint8_t {
  kFloats,  // float32, float16 or bfloat16
  kFloat32,
  kInt32,
  kAny,   // what the kernel asks for, by its attributes
  kSame,  // an output: the type of the first input
};

struct Parameter {
  const char* name;
  Takes takes;
  bool optional = false;
};

// Where the types of outputs follow from attributes, a runtime cannot know them: it takes those
// that the model says (value_info).
struct Operator {
  const char* domain;
  const char* name;
  std::span<const Parameter> inputs;
  std::span<const Parameter> outputs;
  std::unique_ptr<Kernel> (*make)(const Node& node);
  void (*infer)(const Inference& node);  // shapes of outputs
  bool types_from_model = false;
};

// The table: every operator of this library. A new one is a file of its own and a row of
// operators.cpp.
std::span<const Operator> operators();

template <class T>
std::unique_ptr<Kernel> made(const Node& node) {
  return std::make_unique<T>(node);
}

}  // namespace bs::ort
