// FakeQuantize, Quantize, DynamicQuantize and Dequantize of the domain blockscale.
#include "quantize.h"

#include <vector>

#include "argument_error.h"
#include "quantizer.h"

namespace bs::ort {

namespace {

class FakeQuantize final : public Kernel {
 public:
  explicit FakeQuantize(const Node& node) : quantizer_(node) {
    quantizer_.check_rank(node.input(0));
    quantizer_.check_parameters(node, 1);
  }

  void compute(Context& context) const override {
    const Value x = context.input(0).value();
    const Plan plan = quantizer_.plan(x.shape);
    const Parameters parameters = quantizer_.parameters(context, 1, x.shape);
    const auto y = context.output(0, x.shape, x.type);
    if (!y) return;
    plan.fake_quantize(x.tensor(), y->tensor(), parameters, quantizer_.seed(), context.host());
  }

 private:
  const Quantizer quantizer_;
};

class Quantize final : public Kernel {
 public:
  explicit Quantize(const Node& node) : quantizer_(node) {
    quantizer_.check_codes_exist();
    quantizer_.check_rank(node.input(0));
    if (!node.input(1)) refuse("scale", "missing", "an input; DynamicQuantize measures it");
    quantizer_.check_parameters(node, 1);
    quantizer_.check_type("codes", node.output(0), quantizer_.codes_type());
  }

  void compute(Context& context) const override {
    const Value x = context.input(0).value();
    const Plan plan = quantizer_.plan(x.shape);
    const Parameters parameters = quantizer_.parameters(context, 1, x.shape);
    if (!parameters.given) refuse("scale", "missing", "an input; DynamicQuantize measures it");
    const Shape shape = quantizer_.codes_shape(x.shape);
    const auto codes = context.output(0, shape, quantizer_.codes_type());
    if (!codes) return;
    plan.quantize(x.tensor(), codes->memory(), parameters, quantizer_.seed(), context.host());
  }

 private:
  const Quantizer quantizer_;
};

class DynamicQuantize final : public Kernel {
 public:
  explicit DynamicQuantize(const Node& node) : quantizer_(node) {
    quantizer_.check_codes_exist();
    quantizer_.check_rank(node.input(0));
    quantizer_.check_type("codes", node.output(0), quantizer_.codes_type());
    quantizer_.check_type("scale", node.output(1), quantizer_.scale_type());
    quantizer_.check_type("zero_point", node.output(2), kOrtInt32);
    quantizer_.check_type("tensor_scale", node.output(3), kOrtFloat);
  }

  void compute(Context& context) const override {
    const Value x = context.input(0).value();
    const Plan plan = quantizer_.plan(x.shape);
    Parameters parameters = quantizer_.measured(context, 1);
    const Shape scale_shape = quantizer_.scale_shape(x.shape);
    const Shape none{0};
    const bool has_zeros = quantizer_.numbers().zero_point;
    const bool has_tensor_scale = quantizer_.numbers().family == Family::kTensorScaled;
    const auto codes = context.output(0, quantizer_.codes_shape(x.shape), quantizer_.codes_type());
    const auto scale = context.output(1, scale_shape, quantizer_.scale_type());
    const auto zeros = context.output(2, has_zeros ? scale_shape : none, kOrtInt32);
    const auto tensor_scale = context.output(3, has_tensor_scale ? Shape{} : none, kOrtFloat);
    // What nobody wants is made all the same, since the others follow from it.
    Room codes_room, scale_room, zero_room;
    const Memory to = codes_room.of(codes, plan.code_bytes());
    parameters.scales = scale_room.of(scale, plan.scale_bytes());
    if (has_zeros) {
      parameters.zero_points = zero_room.of(zeros, size_t(plan.scale_count()) * sizeof(int32_t));
    }
    const float t = plan.quantize(x.tensor(), to, parameters, quantizer_.seed(), context.host());
    if (tensor_scale && has_tensor_scale) *reinterpret_cast<float*>(tensor_scale->data) = t;
  }

 private:
  // Memory of an output, or in its place.
  class Room {
   public:
    Memory of(const std::optional<Value>& output, size_t bytes) {
      if (output) return output->memory();
      own_.resize(bytes / sizeof(int32_t) + 1);
      return {reinterpret_cast<unsigned char*>(own_.data()), bytes};
    }

   private:
    std::vector<int32_t> own_;
  };

  const Quantizer quantizer_;
};

class Dequantize final : public Kernel {
 public:
  explicit Dequantize(const Node& node)
      : quantizer_(node),
        shape_(node.integers("shape")),
        type_(type_of(node.integer("dtype", kOrtFloat))) {
    quantizer_.check_codes_exist();
    if (shape_.size() != quantizer_.block().size()) {
      refuse("shape", shown(shape_), "as many sizes as block, " + shown(quantizer_.block()));
    }
    if (!node.input(1)) refuse("scale", "missing", "an input");
    quantizer_.check_type("codes", node.input(0), quantizer_.codes_type());
    quantizer_.check_parameters(node, 1);
    const auto y = node.output(0);
    if (y && y->type != type_)
      refuse("dtype", name_of(type_),
             std::string(name_of(y->type)) + ", which the model says of its output");
  }

  void compute(Context& context) const override {
    const Value codes = context.input(0).value();
    const Shape shape = quantizer_.decoded_shape(codes.shape, shape_);
    const Plan plan = quantizer_.plan(shape);
    quantizer_.check_codes(codes, shape);
    const Parameters parameters = quantizer_.parameters(context, 1, shape);
    const auto y = context.output(0, shape, type_);
    if (y) plan.dequantize(codes.memory(), y->tensor(), parameters, context.host());
  }

 private:
  static OrtElementType type_of(int64_t dtype) {
    if (is_float(OrtElementType(dtype))) return OrtElementType(dtype);
    refuse("dtype", dtype, "1 (float32), 10 (float16) or 16 (bfloat16)");
  }

  const Quantizer quantizer_;
  const Shape shape_;
  const OrtElementType type_;
};

}  // namespace

std::unique_ptr<Kernel> make_fake_quantize(const Node& node) { return made<FakeQuantize>(node); }
std::unique_ptr<Kernel> make_quantize(const Node& node) { return made<Quantize>(node); }
std::unique_ptr<Kernel> make_dynamic_quantize(const Node& node) {
  return made<DynamicQuantize>(node);
}
std::unique_ptr<Kernel> make_dequantize(const Node& node) { return made<Dequantize>(node); }

}  // namespace bs::ort
