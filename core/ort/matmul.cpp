// MatMul of the domain blockscale: the weight is decoded, and the runtime multiplies.
#include "matmul.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>

#include "argument_error.h"
#include "gemm.h"
#include "half.h"
#include "quantizer.h"

namespace bs::ort {

namespace {

constexpr size_t kCodes = 1, kScale = 2, kBias = 5;

// Uninitialised memory for one run.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : data_(new T[size_t(count)]) {}
  T* data() { return data_.get(); }

 private:
  std::unique_ptr<T[]> data_;
};

void widen(const void* from, OrtElementType type, int64_t size, float* to) {
  const auto* half = static_cast<const uint16_t*>(from);
  if (type == kOrtFloat) {
    std::copy_n(static_cast<const float*>(from), size, to);
  } else if (type == kOrtFloat16) {
    std::transform(half, half + size, to, [](uint16_t bits) { return half_to_float(bits); });
  } else {
    std::transform(half, half + size, to, [](uint16_t bits) { return bfloat_to_float(bits); });
  }
}

void narrow(const float* from, int64_t size, OrtElementType type, void* to) {
  auto* half = static_cast<uint16_t*>(to);
  if (type == kOrtFloat16) {
    std::transform(from, from + size, half, [](float value) { return float_to_half(value); });
  } else {
    std::transform(from, from + size, half, [](float value) { return float_to_bfloat(value); });
  }
}

class MatMul final : public Kernel {
 public:
  explicit MatMul(const Node& node)
      : weight_(node),
        shape_(node.integers("shape")),
        transposed_(read_flag(node)),
        gemm_(node, transposed_, node.input(kBias).has_value()) {
    check_weight(node);
    const std::string numbers = node.text("x_numbers", "");
    x_block_ = node.integer("x_block", 0);
    if (x_block_ < 0) refuse("x_block", x_block_, "positive, or 0 for a whole row");
    if (!numbers.empty()) x_numbers_ = numbers_of("x_numbers", numbers);
    const auto x = node.input(0), bias = node.input(kBias);
    if (x && x->shape && x->shape->back() >= 0) check_x(*x->shape);
    if (x && bias && bias->type != x->type) refuse("bias", name_of(bias->type), name_of(x->type));
    if (bias && bias->shape && bias->shape->back() >= 0) check_bias(*bias->shape);
  }

  void compute(Context& context) const override {
    const Value x = context.input(0).value();
    check_x(x.shape);
    const auto bias = context.input(kBias);
    if (bias) check_bias(bias->shape);
    Shape shape = x.shape;
    shape.back() = columns();
    const auto y = context.output(0, shape, x.type);
    if (!y || y->size() == 0) return;

    Buffer<float> w(count(shape_));
    decode(context, w.data());
    const bool copies = x_numbers_ || x.type != kOrtFloat;
    Buffer<float> x_room(copies ? x.size() : 0);
    const float* rows = copies ? quantized(context, x, x_room) : reinterpret_cast<float*>(x.data);
    Buffer<float> bias_room(bias ? columns() : 0);
    if (bias) widen(bias->data, bias->type, columns(), bias_room.data());
    Buffer<float> y_room(x.type == kOrtFloat ? 0 : y->size());
    float* to = x.type == kOrtFloat ? reinterpret_cast<float*>(y->data) : y_room.data();
    multiply(context, rows, w.data(), bias ? bias_room.data() : nullptr, to, y->size());
    if (x.type != kOrtFloat) narrow(to, y->size(), x.type, y->data);
  }

 private:
  static bool read_flag(const Node& node) {
    const int64_t flag = node.integer("trans_b", 0);
    if (flag != 0 && flag != 1) refuse("trans_b", flag, "0 (weight [K, N]) or 1 ([N, K])");
    return flag == 1;
  }

  int64_t rows() const { return shape_[transposed_ ? 1 : 0]; }
  int64_t columns() const { return shape_[transposed_ ? 0 : 1]; }

  void check_weight(const Node& node) const {
    weight_.check_codes_exist();
    if (shape_.size() != 2 || shape_[0] < 0 || shape_[1] < 0) {
      refuse("shape", shown(shape_), "two sizes, those of the decoded weight");
    }
    weight_.plan(shape_);
    weight_.check_type("codes", node.input(kCodes), weight_.codes_type());
    weight_.check_parameters(node, kScale);
    const auto codes = node.input(kCodes);
    const Shape wanted = weight_.codes_shape(shape_);
    if (codes && codes->shape && std::ranges::min(*codes->shape) >= 0 && *codes->shape != wanted) {
      refuse("codes shape", shown(*codes->shape), shown(wanted) + " for shape " + shown(shape_));
    }
  }

  void check_x(const Shape& shape) const {
    if (!shape.empty() && shape.back() == rows()) return;
    refuse("x shape", shown(shape), "K = " + std::to_string(rows()) + " in the last dimension");
  }

  void check_bias(const Shape& shape) const {
    if (shape != Shape{columns()}) refuse("bias shape", shown(shape), shown({columns()}));
  }

  void decode(Context& context, float* to) const {
    const Value codes = context.input(kCodes).value();
    weight_.check_codes(codes, shape_);
    const Parameters parameters = weight_.parameters(context, kScale, shape_);
    const size_t bytes = size_t(count(shape_)) * sizeof(float);
    const Tensor w{{reinterpret_cast<unsigned char*>(to), bytes}, int(TensorType::kF32), {}};
    weight_.plan(shape_).dequantize(codes.memory(), w, parameters, context.host());
  }

  // x in float32, after what x_numbers make of it in its own type.
  const float* quantized(Context& context, const Value& x, Buffer<float>& room) const {
    if (!x_numbers_) {
      widen(x.data, x.type, x.size(), room.data());
      return room.data();
    }
    Shape block(x.shape.size(), 1);
    block.back() = x_block_;
    const Plan plan = Quantizer(*x_numbers_, block, 0).plan(x.shape);
    Parameters none{};
    none.tensor_scale = 1;
    Buffer<uint16_t> half(x.type == kOrtFloat ? 0 : x.size());
    unsigned char* to = x.type == kOrtFloat ? reinterpret_cast<unsigned char*>(room.data())
                                            : reinterpret_cast<unsigned char*>(half.data());
    const Tensor fake{{to, x.bytes()}, int(tensor_type(x.type)), {}};
    plan.fake_quantize(x.tensor(), fake, none, 0, context.host());
    if (x.type != kOrtFloat) widen(half.data(), x.type, x.size(), room.data());
    return room.data();
  }

  void multiply(const Context& context, const float* x, const float* w, const float* bias, float* y,
                int64_t size) const {
    if (rows() != 0) {
      return gemm_.run(context, x, w, bias, y, size / columns(), rows(), columns());
    }
    for (int64_t i = 0; i < size; ++i) y[i] = bias ? bias[i % columns()] : 0;
  }

  const Quantizer weight_;
  const Shape shape_;
  const bool transposed_;
  const Gemm gemm_;
  std::optional<Numbers> x_numbers_;
  int64_t x_block_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_matmul(const Node& node) { return made<MatMul>(node); }

}  // namespace bs::ort
