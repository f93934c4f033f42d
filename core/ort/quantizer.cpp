#include "quantizer.h"

#include <algorithm>

#include "argument_error.h"
#include "number_text.h"

namespace bs::ort {

namespace {

void check_type_is(const char* name, OrtElementType given, OrtElementType wanted,
                   const Numbers& numbers) {
  if (given == wanted) return;
  refuse(name, name_of(given),
         std::string(name_of(wanted)) + " for " + numbers.element_format().name + " × " +
             numbers.scale_format().name);
}

void check_shape_is(const char* name, const Shape& given, const Shape& wanted, const Shape& shape,
                    const Shape& block) {
  if (given == wanted) return;
  refuse(std::string(name) + " shape", shown(given),
         shown(wanted) + " for shape " + shown(shape) + " in blocks of " + shown(block));
}

}  // namespace

Numbers numbers_of(const std::string& attribute, const std::string& text) {
  try {
    return bs::numbers_of(numbers_named(text));
  } catch (const ArgumentError& error) {
    refuse(attribute, text, error.argument() == "numbers" ? error.allowed() : error.what());
  }
}

Quantizer::Quantizer(const Node& node)
    : numbers_(numbers_of("numbers", node.text("numbers"))),
      block_(node.integers("block")),
      seed_(uint64_t(node.integer("seed", 0))) {
  for (const int64_t b : block_) {
    if (b < 0) refuse("block", shown(block_), "positive, or 0 for a whole dimension");
  }
}

Quantizer::Quantizer(const Numbers& numbers, Shape block, uint64_t seed)
    : numbers_(numbers), block_(std::move(block)), seed_(seed) {}

Plan Quantizer::plan(const Shape& shape) const {
  if (shape.size() != block_.size()) {
    refuse("block", shown(block_), "one entry a dimension of shape " + shown(shape));
  }
  return Plan(numbers_, shape, block_);
}

Shape Quantizer::scale_shape(const Shape& shape) const {
  Shape result(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t n = shape[i], b = block_[i];
    result[i] = b == 0 ? 1 : n / b + (n % b != 0);
  }
  return result;
}

Shape Quantizer::codes_shape(const Shape& shape) const {
  const Format& element = numbers_.element_format();
  Shape result = shape;
  if (element.packed() && !shape.empty()) {
    result.back() = (shape.back() * element.bits + 7) / 8;
  }
  return result;
}

Shape Quantizer::decoded_shape(const Shape& codes, const Shape& said) const {
  Shape result = said;
  const Format& element = numbers_.element_format();
  const int64_t per_byte = element.packed() ? 8 / element.bits : 1;
  for (size_t i = 0; i < said.size(); ++i) {
    if (said[i] < -1) refuse("shape", shown(said), "sizes, or -1");
    if (said[i] != -1) continue;
    if (codes.size() != said.size()) {
      refuse("shape", shown(said), "as many sizes as the codes of shape " + shown(codes) + " have");
    }
    result[i] = codes[i] * (i + 1 == said.size() ? per_byte : 1);
  }
  return result;
}

OrtElementType Quantizer::codes_type() const {
  const Format& element = numbers_.element_format();
  if (element.kind != Kind::kFixed || element.bits < 8) return kOrtUint8;
  if (element.bits == 8) return element.is_signed ? kOrtInt8 : kOrtUint8;
  return element.is_signed ? kOrtInt16 : kOrtUint16;
}

OrtElementType Quantizer::scale_type() const {
  switch (numbers_.scale) {
    case k_f32:
      return kOrtFloat;
    case k_bf16:
      return kOrtBfloat16;
    case k_f16:
      return kOrtFloat16;
    default:
      return kOrtUint8;
  }
}

void Quantizer::check_rank(const std::optional<Known>& tensor) const {
  if (!tensor || !tensor->shape || tensor->shape->size() == block_.size()) return;
  refuse("block", shown(block_), "one entry a dimension of shape " + shown(*tensor->shape));
}

void Quantizer::check_type(const char* name, const std::optional<Known>& tensor,
                           OrtElementType type) const {
  if (tensor) check_type_is(name, tensor->type, type, numbers_);
}

void Quantizer::check_codes_exist() const {
  if (numbers_.has_codes) return;
  refuse("numbers", "of a dialect that only fake-quantizes",
         "one with codes; FakeQuantize takes it");
}

void Quantizer::check_parameters(const Node& node, size_t first) const {
  const auto scale = node.input(first);
  if (!scale) return;
  // A tensor of shape (0,) is none, and may be of any type.
  if (!(scale->shape && scale->shape->size() == 1 && scale->shape->front() == 0)) {
    check_type("scale", scale, scale_type());
  }
  const auto tensor_scale = node.input(first + 2);
  if (numbers_.zero_point && !node.input(first + 1)) {
    refuse("zero_point", "missing", "an input, beside scale, for these numbers");
  }
  if (numbers_.family == Family::kTensorScaled && !tensor_scale) {
    refuse("tensor_scale", "missing", "an input, beside scale, for these numbers");
  }
}

Parameters Quantizer::parameters(const Context& context, size_t first, const Shape& shape) const {
  auto scale = context.input(first);
  auto zeros = context.input(first + 1);
  if (zeros && zeros->is_none() && !numbers_.zero_point) zeros.reset();
  const Shape wanted = scale_shape(shape);
  // Of shape (0,) it is none, but where there are no elements that may be its shape.
  if (scale && scale->is_none() && wanted != scale->shape) scale.reset();
  Parameters result{};
  result.given = scale.has_value();
  if (scale) {
    check_type_is("scale", scale->type, scale_type(), numbers_);
    check_shape_is("scale", scale->shape, wanted, shape, block_);
    result.scales = scale->memory();
  }
  if (zeros && zeros->is_none() && !scale) zeros.reset();
  if (zeros) {
    if (!numbers_.zero_point)
      refuse("zero_point", shown(zeros->shape), "none: these numbers have none");
    if (!scale) refuse("zero_point", "given without scale", "both or neither");
    check_type_is("zero_point", zeros->type, kOrtInt32, numbers_);
    check_shape_is("zero_point", zeros->shape, wanted, shape, block_);
    result.zero_points = zeros->memory();
  } else if (scale && numbers_.zero_point) {
    refuse("zero_point", "missing", "an input, beside scale, for these numbers");
  }
  read_tensor_scale(context, first + 2, result);
  if (result.given && numbers_.family == Family::kTensorScaled && !result.tensor_scale_given) {
    refuse("tensor_scale", "missing", "an input, beside scale, for these numbers");
  }
  return result;
}

Parameters Quantizer::measured(const Context& context, size_t tensor_scale) const {
  Parameters result{};
  read_tensor_scale(context, tensor_scale, result);
  return result;
}

void Quantizer::read_tensor_scale(const Context& context, size_t index, Parameters& to) const {
  to.tensor_scale = 1;
  const auto value = context.input(index);
  if (!value || value->is_none()) return;
  if (numbers_.family != Family::kTensorScaled) {
    refuse("tensor_scale", shown(value->shape), "none: these numbers have none");
  }
  check_type_is("tensor_scale", value->type, kOrtFloat, numbers_);
  if (!value->shape.empty()) refuse("tensor_scale shape", shown(value->shape), "()");
  to.tensor_scale = *reinterpret_cast<const float*>(value->data);
  to.tensor_scale_given = true;
}

void Quantizer::check_codes(const Value& codes, const Shape& shape) const {
  check_type_is("codes", codes.type, codes_type(), numbers_);
  const Shape wanted = codes_shape(shape);
  if (codes.shape != wanted) {
    refuse("codes shape", shown(codes.shape), shown(wanted) + " for shape " + shown(shape));
  }
}

}  // namespace bs::ort
