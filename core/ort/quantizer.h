// What the quantizers share: numbers and blocks from attributes, a plan for the shape of a run, and
// the parameters that are inputs.
#pragma once

#include <cstdint>
#include <optional>

#include "context.h"
#include "node.h"
#include "plan.h"

namespace bs::ort {

// The attributes `numbers`, `block` and `seed`, and what follows from them alone.
class Quantizer {
 public:
  explicit Quantizer(const Node& node);
  Quantizer(const Numbers& numbers, Shape block, uint64_t seed);

  const Numbers& numbers() const { return numbers_; }
  const Shape& block() const { return block_; }
  uint64_t seed() const { return seed_; }

  // An error if the shape has another number of dimensions than there are blocks.
  Plan plan(const Shape& shape) const;
  Shape scale_shape(const Shape& shape) const;
  Shape codes_shape(const Shape& shape) const;
  // The shape whose codes these are; -1 in `said` is the size that the codes have.
  Shape decoded_shape(const Shape& codes, const Shape& said) const;

  OrtElementType codes_type() const;
  OrtElementType scale_type() const;

  void check_rank(const std::optional<Known>& tensor) const;
  void check_type(const char* name, const std::optional<Known>& tensor, OrtElementType type) const;
  void check_codes_exist() const;
  // What is known of the inputs scale, zero_point and tensor_scale, from `first` on.
  void check_parameters(const Node& node, size_t first) const;

  // Inputs scale, zero_point and tensor_scale from `first` on, checked for a tensor of `shape`.
  Parameters parameters(const Context& context, size_t first, const Shape& shape) const;
  // The one input tensor_scale, of what is measured; scales have no memory yet.
  Parameters measured(const Context& context, size_t tensor_scale) const;
  void check_codes(const Value& codes, const Shape& shape) const;

 private:
  void read_tensor_scale(const Context& context, size_t index, Parameters& to) const;

  Numbers numbers_;
  Shape block_;
  uint64_t seed_;
};

Numbers numbers_of(const std::string& attribute, const std::string& text);

}  // namespace bs::ort
