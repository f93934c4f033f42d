// Shapes of outputs, told to the runtime when it loads a model, so that what comes after knows
// them. What is not known stays unsaid: a model may say more of its values than follows here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "c_api.h"

namespace bs::ort {

// A size: a number, or -1 and its name, which is empty where it is not known.
struct Dim {
  int64_t size;
  std::string name;
};
using Dims = std::vector<Dim>;

struct Said {
  OrtElementType type;
  std::optional<Dims> dims;  // nothing where the shape, or one of its sizes, is unknown
};

class Inference {
 public:
  Inference(const OrtApi& api, OrtShapeInferContext* context);

  // Nothing where it is left out.
  std::optional<Said> input(size_t index) const;
  // Nothing where it is absent, or of another type.
  std::optional<std::string> text(const char* name) const;
  std::optional<std::vector<int64_t>> integers(const char* name) const;
  int64_t integer(const char* name, int64_t absent) const;

  void set_output(size_t index, OrtElementType type, const Dims& dims) const;

 private:
  const OrtOpAttr* attribute(const char* name) const;

  const OrtApi& api_;
  OrtShapeInferContext* context_;
  size_t inputs_ = 0;
};

// Of the rows of the table.
void infer_same(const Inference& node);
void infer_codes(const Inference& node);
void infer_measured(const Inference& node);
void infer_decoded(const Inference& node);
void infer_product(const Inference& node);

}  // namespace bs::ort
