#include "quark.h"

#include <cstring>

#include "argument_error.h"
#include "quantizer.h"

namespace bs::ort {

namespace {

constexpr const char* kElements[] = {"int8",     "fp8_e4m3", "fp8_e5m2",
                                     "fp6_e3m2", "fp6_e2m3", "fp4_e2m1"};
constexpr const char* kRoundings[] = {"half_away", "half_up", "half_even"};

Numbers numbers_from(const Node& node) {
  const std::string element = node.text("element_dtype", "int8");
  std::string allowed;
  bool known = false;
  for (const char* one : kElements) {
    known |= element == one;
    allowed += (allowed.empty() ? "" : ", ") + std::string(one);
  }
  if (!known) refuse("element_dtype", element, "allowed are " + allowed);
  const int64_t mode = node.integer("rounding_mode", 0);
  if (mode < 0 || mode > 2) {
    refuse("rounding_mode", mode, "0 (half_away), 1 (half_up) or 2 (half_even)");
  }
  // Floats are rounded half to even in every mode.
  const std::string base = element == "int8"       ? "mxint8"
                           : element == "fp4_e2m1" ? "mxfp4"
                                                   : "mx" + element;
  const std::string rounding = element == "int8" ? kRoundings[mode] : "half_even";
  return numbers_of("element_dtype", base + ",dialect=quark,rounding=" + rounding);
}

class MxQuantizeDequantize final : public Kernel {
 public:
  explicit MxQuantizeDequantize(const Node& node)
      : numbers_(numbers_from(node)),
        axis_(node.integer("axis", 1)),
        block_(node.integer("block_size", 32)) {
    if (block_ < 1) refuse("block_size", block_, "at least 1");
    const auto x = node.input(0);
    if (x && x->shape) index_of_axis(*x->shape);
  }

  void compute(Context& context) const override {
    const Value x = context.input(0).value();
    const auto y = context.output(0, x.shape, x.type);
    if (!y) return;
    if (x.size() == 1) {  // one element comes back as it is
      std::memcpy(y->data, x.data, x.bytes());
      return;
    }
    Shape block(x.shape.size(), 1);
    if (!block.empty()) block[index_of_axis(x.shape)] = block_;
    const Quantizer quantizer(numbers_, block, 0);
    Parameters none{};
    none.tensor_scale = 1;
    quantizer.plan(x.shape).fake_quantize(x.tensor(), y->tensor(), none, 0, context.host());
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

}  // namespace

std::unique_ptr<Kernel> make_quark_mx(const Node& node) { return made<MxQuantizeDequantize>(node); }

}  // namespace bs::ort
