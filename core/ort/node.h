// A node when its kernel is made: attributes, and what is known of its inputs and outputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "c_api.h"
#include "operator.h"

namespace bs::ort {

using Shape = std::vector<int64_t>;

struct Known {
  OrtElementType type;
  std::optional<Shape> shape;  // -1 for sizes of the run
};

class Node {
 public:
  Node(const OrtApi& api, const OrtKernelInfo* info, const Operator& row);

  const OrtApi& api() const { return api_; }
  const OrtKernelInfo* info() const { return info_; }
  const Operator& row() const { return row_; }
  // How errors begin: the operator, and the node's name.
  const std::string& where() const { return where_; }

  // No more inputs and outputs than the row has, and of types that it takes.
  void check() const;

  // An attribute, or `absent`. Of another type it is an error.
  std::string text(const char* name, const char* absent) const;
  std::string text(const char* name) const;  // it must be there
  int64_t integer(const char* name, int64_t absent) const;
  std::vector<int64_t> integers(const char* name) const;  // empty if absent

  // Nothing where it is left out.
  std::optional<Known> input(size_t index) const;
  std::optional<Known> output(size_t index) const;

 private:
  void refuse_other_types(const char* name, const char* wanted) const;
  std::optional<Known> known(OrtStatus* status, OrtTypeInfo* info) const;

  const OrtApi& api_;
  const OrtKernelInfo* info_;
  const Operator& row_;
  std::string where_;
  size_t inputs_ = 0, outputs_ = 0;
};

const char* name_of(OrtElementType type);
bool is_float(OrtElementType type);  // of those that a tensor of values has

// `Shape` in words.
std::string shown(const Shape& shape);

}  // namespace bs::ort
