#include "quark.h"

#include <cstring>
#include <vector>

#include "argument_error.h"
#include "half.h"
#include "quantizer.h"
#include "range_ends.h"

namespace bs::ort {

namespace {

constexpr const char* kElements[] = {"int8",     "fp8_e4m3", "fp8_e5m2",
                                     "fp6_e3m2", "fp6_e2m3", "fp4_e2m1"};
constexpr const char* kRoundings[] = {"half_away", "half_up", "half_even"};

int64_t rounding_mode(const Node& node) {
  const int64_t mode = node.integer("rounding_mode", 0);
  if (mode < 0 || mode > 2) {
    refuse("rounding_mode", mode, "0 (half_away), 1 (half_up) or 2 (half_even)");
  }
  return mode;
}

Numbers numbers_from(const Node& node) {
  const std::string element = node.text("element_dtype", "int8");
  std::string allowed;
  bool known = false;
  for (const char* one : kElements) {
    known |= element == one;
    allowed += (allowed.empty() ? "" : ", ") + std::string(one);
  }
  if (!known) refuse("element_dtype", element, "allowed are " + allowed);
  const int64_t mode = rounding_mode(node);
  // Floats are rounded half to even in every mode.
  const std::string base = element == "int8"       ? "mxint8"
                           : element == "fp4_e2m1" ? "mxfp4"
                                                   : "mx" + element;
  const std::string rounding = element == "int8" ? kRoundings[mode] : "half_even";
  return numbers_of("element_dtype", base + ",dialect=quark,rounding=" + rounding);
}

// Element width, rounding and blocks as the attributes say; what they leave out is as Quark has it.
Numbers bfp_numbers_from(const Node& node) {
  const std::string method = node.text("bfp_method", "to_bfp");
  const bool prime =
      method == "to_bfp_prime" || method == "to_bfp_prime_shared";  // two names of one
  if (!prime && method != "to_bfp") {
    refuse("bfp_method", method, "allowed are to_bfp, to_bfp_prime, to_bfp_prime_shared");
  }
  const int64_t width = node.integer("bit_width", 16);
  if (width < 10 || width > 24) refuse("bit_width", width, "from 10 to 24");
  const int64_t mode = rounding_mode(node);
  const int64_t size = node.integer("sub_block_size", 2);
  const int64_t shift = node.integer("sub_block_shift_bits", 1);
  const bool compiler = node.integer("use_compiler_version_cpu_kernel", 0) != 0 && !prime;
  if (compiler && width != 16) {
    refuse("bit_width", width, "16, where use_compiler_version_cpu_kernel is set");
  }
  std::string text = "bfp" + std::to_string(width) + ",rounding=" + kRoundings[mode];
  text += compiler ? ",dialect=quark_compiler" : ",dialect=quark";
  if (prime) {
    if (size < 1) refuse("sub_block_size", size, "at least 1");
    text += ",sub_block=" + std::to_string(size) + ",sub_shift=" + std::to_string(shift);
  }
  return numbers_of("bfp_method", text);
}

// Fake-quantizes blocks along one axis, and leaves a single element as it is.
class AlongAxis : public Kernel {
 public:
  AlongAxis(const Node& node, const Numbers& numbers, int64_t usual_block)
      : numbers_(numbers),
        axis_(node.integer("axis", 1)),
        block_(node.integer("block_size", usual_block)) {
    if (block_ < 1) refuse("block_size", block_, "at least 1");
    if (numbers.sub_block > 0 && block_ % numbers.sub_block != 0) {
      refuse("block_size", block_, "a multiple of sub_block_size");
    }
    const auto x = node.input(0);
    if (x && x->shape) index_of_axis(*x->shape);
  }

 protected:
  void fake_quantize(const Shape& shape, const Tensor& x, const Tensor& y, const Host& host) const {
    Shape block(shape.size(), 1);
    if (!block.empty()) block[index_of_axis(shape)] = block_;
    Parameters none{};
    none.tensor_scale = 1;
    Quantizer(numbers_, block, 0).plan(shape).fake_quantize(x, y, none, 0, host);
  }

 private:
  // Of one dimension the axis says nothing.
  size_t index_of_axis(const Shape& shape) const {
    const auto rank = int64_t(shape.size());
    if (rank == 1) return 0;
    if (axis_ < -rank || axis_ >= rank) {
      refuse("axis", axis_,
             "from " + std::to_string(-rank) + " to " + std::to_string(rank - 1) + " for shape " +
                 shown(shape));
    }
    return size_t(axis_ < 0 ? axis_ + rank : axis_);
  }

  const Numbers numbers_;
  const int64_t axis_, block_;
};

class MxQuantizeDequantize final : public AlongAxis {
 public:
  explicit MxQuantizeDequantize(const Node& node) : AlongAxis(node, numbers_from(node), 32) {}

  void compute(Context& context) const override {
    const Value x = context.input(0).value();
    const auto y = context.output(0, x.shape, x.type);
    if (!y) return;
    if (x.size() == 1) {  // one element comes back as it is
      std::memcpy(y->data, x.data, x.bytes());
      return;
    }
    fake_quantize(x.shape, x.tensor(), y->tensor(), context.host());
  }
};

// Half to even on the bits, NaN too: of some of them nothing is left but a zero or an Inf.
float as_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t low = bits & 0xffff, odd = bits >> 16 & 1;
  const bool up = low > 0x8000 || (low == 0x8000 && odd != 0);
  return float_of((bits + (up ? 0x10000u : 0u)) & 0xffff0000u);
}

// Of any type to float32 and back, where what is between must be float32.
std::vector<float> widened(const Value& x) {
  const auto* halves = reinterpret_cast<const uint16_t*>(x.data);
  std::vector<float> wide(size_t(x.size()));
  for (size_t i = 0; i < wide.size(); ++i) {
    switch (tensor_type(x.type)) {
      case TensorType::kF32:
        wide[i] = reinterpret_cast<const float*>(x.data)[i];
        break;
      case TensorType::kBf16:
        wide[i] = bfloat_to_float(halves[i]);
        break;
      case TensorType::kF16:
        wide[i] = half_to_float(halves[i]);
    }
  }
  return wide;
}

void narrow(std::vector<float>& wide, const Value& y) {
  overflow_to_infinity(wide.data(), wide.size(), tensor_type(y.type));
  auto* halves = reinterpret_cast<uint16_t*>(y.data);
  for (size_t i = 0; i < wide.size(); ++i) {
    switch (tensor_type(y.type)) {
      case TensorType::kF32:
        reinterpret_cast<float*>(y.data)[i] = wide[i];
        break;
      case TensorType::kBf16:
        halves[i] = float_to_bfloat(wide[i]);
        break;
      case TensorType::kF16:
        halves[i] = float_to_half(wide[i]);
    }
  }
}

class BfpQuantizeDequantize final : public AlongAxis {
 public:
  explicit BfpQuantizeDequantize(const Node& node)
      : AlongAxis(node, bfp_numbers_from(node), 8),
        bfloat_first_(node.integer("convert_to_bfloat_before_bfp", 0) != 0) {}

  void compute(Context& context) const override {
    const Value x = context.input(0).value();
    const auto y = context.output(0, x.shape, x.type);
    if (!y) return;
    const bool single = x.size() == 1;  // one element is not quantized
    if (bfloat_first_) {
      std::vector<float> wide = widened(x);
      for (float& value : wide) value = as_bfloat(value);
      auto* data = reinterpret_cast<unsigned char*>(wide.data());
      const Tensor same{{data, wide.size() * sizeof(float)}, int(TensorType::kF32), {}};
      if (!single) fake_quantize(x.shape, same, same, context.host());
      narrow(wide, *y);
    } else if (single) {
      std::memcpy(y->data, x.data, x.bytes());
    } else {
      fake_quantize(x.shape, x.tensor(), y->tensor(), context.host());
    }
  }

 private:
  const bool bfloat_first_;
};

}  // namespace

std::unique_ptr<Kernel> make_quark_mx(const Node& node) { return made<MxQuantizeDequantize>(node); }
std::unique_ptr<Kernel> make_quark_bfp(const Node& node) {
  return made<BfpQuantizeDequantize>(node);
}

}  // namespace bs::ort
