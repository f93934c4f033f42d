// blockscale._core: the compiled core for Python. Private: blockscale.numerics.native is its only
// user.
//
// Memory comes as (address, bytes). Every call checks that what it will touch lies inside; the
// address itself is the caller's word.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "argument_error.h"
#include "block_params.h"
#include "engine.h"
#include "kernels.h"
#include "linear.h"
#include "number_text.h"
#include "parallel.h"
#include "plan.h"
#include "within.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Ints = std::vector<int64_t>;

bs::Memory memory(uintptr_t address, size_t bytes) {
  return {reinterpret_cast<unsigned char*>(address), bytes};
}

bs::Tensor tensor(uintptr_t address, size_t bytes, int type, std::optional<Ints> strides) {
  return {memory(address, bytes), type, strides ? std::move(*strides) : Ints{}};
}

bs::Plan make_plan(const bs::NumberNames& names, const Ints& shape, const Ints& block) {
  return bs::Plan(bs::numbers_of(names), shape, block);
}

// The GIL is given up for work that takes longer than taking it back.
class Unlocked {
 public:
  explicit Unlocked(int64_t elements) {
    if (elements > 4096) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

bs::Host host_of(int kind, int threads) {
  switch (kind) {
    case 0:
      return bs::pool_host(threads);
    case 1:
      return bs::openmp_host(threads);
    default:
      return bs::serial_host();
  }
}

bool within(uintptr_t address, size_t count, int width, int64_t low, int64_t high) {
  const Unlocked unlocked(int64_t(count) / 8);
  const auto* values = reinterpret_cast<const void*>(address);
  switch (width) {
    case 1:
      return bs::all_within(values, count, uint8_t(low), uint8_t(high));
    case 2:
      return bs::all_within(values, count, uint16_t(low), uint16_t(high));
    case 4:
      return bs::all_within(values, count, uint32_t(low), uint32_t(high));
    default:
      bs::refuse("width", int64_t{width}, "1, 2 or 4 bytes");
  }
}

struct Stored {
  uintptr_t scales = 0;
  size_t scale_bytes = 0;
  uintptr_t zeros = 0;
  size_t zero_bytes = 0;
  float tensor_scale = 1;
  bool tensor_scale_given = false;
  bool given = false;
  nb::object keep = nb::none();  // what owns the memory, for as long as this is used
};

bs::Parameters parameters(const Stored& s) {
  return {memory(s.scales, s.scale_bytes), memory(s.zeros, s.zero_bytes), s.tensor_scale,
          s.tensor_scale_given, s.given};
}

// How x of a linear layer comes: see LinearInput.
struct InputForm {
  std::optional<bs::Numbers> numbers;
  int64_t block = 0;
  int64_t block_rows = 1;
  bool coded = false;
  Stored given;
};

// The core's refusals as those of the package.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const bs::ArgumentError& error) {
    const nb::object type = nb::module_::import_("blockscale.errors").attr("ArgumentError");
    const nb::object value = std::visit([](const auto& v) { return nb::cast(v); }, error.value());
    const nb::object raised = type(error.argument(), value, error.allowed());
    PyErr_SetObject(type.ptr(), raised.ptr());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::register_exception_translator(translate);
  // torch never lets go of the Python functions behind its operators, nor they of this module.
  nb::set_leak_warnings(false);

  nb::class_<bs::NumberNames>(m, "Numbers")
      .def(nb::init<>())
      .def_rw("element", &bs::NumberNames::element)
      .def_rw("scale", &bs::NumberNames::scale)
      .def_rw("family", &bs::NumberNames::family)
      .def_rw("rule", &bs::NumberNames::rule)
      .def_rw("rounding", &bs::NumberNames::rounding)
      .def_rw("nonfinite", &bs::NumberNames::nonfinite)
      .def_rw("zero_point", &bs::NumberNames::zero_point)
      .def_rw("quant_min", &bs::NumberNames::quant_min)
      .def_rw("quant_max", &bs::NumberNames::quant_max)
      .def_rw("saturates", &bs::NumberNames::saturates)
      .def_rw("reciprocal", &bs::NumberNames::reciprocal)
      .def_rw("nearly_half", &bs::NumberNames::nearly_half)
      .def_rw("has_codes", &bs::NumberNames::has_codes)
      .def_rw("clamps", &bs::NumberNames::clamps)
      .def_rw("flushes", &bs::NumberNames::flushes)
      .def_rw("least_scale", &bs::NumberNames::least_scale)
      .def_rw("zero_scale", &bs::NumberNames::zero_scale)
      .def_rw("int_low", &bs::NumberNames::int_low)
      .def_rw("sub_block", &bs::NumberNames::sub_block)
      .def_rw("sub_shift", &bs::NumberNames::sub_shift)
      .def_rw("zero_of_zero", &bs::NumberNames::zero_of_zero)
      .def_rw("zero_of_underflow", &bs::NumberNames::zero_of_underflow)
      .def_rw("zero_of_tiny", &bs::NumberNames::zero_of_tiny);

  m.def("numbers_named", &bs::numbers_named);

  nb::class_<Stored>(m, "Stored")
      .def(nb::init<>())
      .def_rw("scales", &Stored::scales)
      .def_rw("scale_bytes", &Stored::scale_bytes)
      .def_rw("zeros", &Stored::zeros)
      .def_rw("zero_bytes", &Stored::zero_bytes)
      .def_rw("tensor_scale", &Stored::tensor_scale)
      // Python's floats are doubles, and a flush-to-zero mode loses subnormals on the way there.
      .def_prop_rw(
          "tensor_scale_bits",
          [](const Stored& s) { return std::bit_cast<uint32_t>(s.tensor_scale); },
          [](Stored& s, uint32_t bits) { s.tensor_scale = std::bit_cast<float>(bits); })
      .def_rw("tensor_scale_given", &Stored::tensor_scale_given)
      .def_rw("given", &Stored::given)
      .def_rw("keep", &Stored::keep);

  nb::class_<bs::Plan>(m, "Plan")
      .def("__init__",
           [](bs::Plan* self, const bs::NumberNames& names, const Ints& shape, const Ints& block) {
             new (self) bs::Plan(make_plan(names, shape, block));
           })
      .def_prop_ro("scale_count", &bs::Plan::scale_count)
      .def_prop_ro("scale_bytes", &bs::Plan::scale_bytes)
      .def_prop_ro("code_bytes", &bs::Plan::code_bytes)
      .def("fake_quantize",
           [](const bs::Plan& plan, uintptr_t x, size_t x_bytes, int type,
              std::optional<Ints> x_strides, uintptr_t y, size_t y_bytes,
              std::optional<Ints> y_strides, const Stored& stored, uint64_t seed, int host,
              int threads) {
             const Unlocked unlocked(plan.size());
             plan.fake_quantize(tensor(x, x_bytes, type, std::move(x_strides)),
                                tensor(y, y_bytes, type, std::move(y_strides)), parameters(stored),
                                seed, host_of(host, threads));
           })
      .def("quantize",
           [](const bs::Plan& plan, uintptr_t x, size_t x_bytes, int type,
              std::optional<Ints> x_strides, uintptr_t codes, size_t code_bytes, Stored& stored,
              uint64_t seed, int host, int threads) {
             const Unlocked unlocked(plan.size());
             stored.tensor_scale = plan.quantize(tensor(x, x_bytes, type, std::move(x_strides)),
                                                 memory(codes, code_bytes), parameters(stored),
                                                 seed, host_of(host, threads));
             return stored.tensor_scale;
           })
      .def("choose_params",
           [](const bs::Plan& plan, uintptr_t x, size_t x_bytes, int type,
              std::optional<Ints> x_strides, Stored& stored, int host, int threads) {
             const Unlocked unlocked(plan.size());
             stored.tensor_scale =
                 plan.choose_params(tensor(x, x_bytes, type, std::move(x_strides)),
                                    parameters(stored), host_of(host, threads));
             return stored.tensor_scale;
           })
      .def("dequantize", [](const bs::Plan& plan, uintptr_t codes, size_t code_bytes, uintptr_t y,
                            size_t y_bytes, int type, std::optional<Ints> y_strides,
                            const Stored& stored, int host, int threads) {
        const Unlocked unlocked(plan.size());
        plan.dequantize(memory(codes, code_bytes), tensor(y, y_bytes, type, std::move(y_strides)),
                        parameters(stored), host_of(host, threads));
      });

  nb::class_<InputForm>(m, "InputForm")
      .def(nb::init<>())
      .def("quantized_by",
           [](InputForm& form, const bs::NumberNames& names) {
             form.numbers = bs::numbers_of(names);
           })
      .def_rw("block", &InputForm::block)
      .def_rw("block_rows", &InputForm::block_rows)
      .def_rw("coded", &InputForm::coded)
      .def_rw("given", &InputForm::given);

  nb::class_<bs::PackedWeight>(m, "PackedWeight")
      .def("__init__",
           [](bs::PackedWeight* self, const bs::NumberNames& names, bool rows_of_k, int64_t n,
              int64_t k, int64_t block_n, int64_t block_k, uintptr_t codes, size_t code_bytes,
              const Stored& stored, int host, int threads) {
             const auto storage = rows_of_k ? bs::Storage::kRowsOfK : bs::Storage::kRowsOfN;
             const bs::WeightForm form{bs::numbers_of(names), storage, n, k, block_k, block_n};
             const nb::gil_scoped_release unlocked;
             new (self) bs::PackedWeight(form, memory(codes, code_bytes), parameters(stored),
                                         host_of(host, threads));
           })
      .def_prop_ro("bytes", &bs::PackedWeight::bytes)
      .def("linear", [](const bs::PackedWeight& weight, int64_t rows, const InputForm& form,
                        uintptr_t x, size_t x_bytes, int x_type, int64_t x_stride, uintptr_t y,
                        size_t y_bytes, int y_type, int64_t y_stride, uintptr_t bias,
                        size_t bias_bytes, int activation, int host, int threads) {
        const Unlocked unlocked(rows * weight.n());
        const bs::Memory bias_memory = memory(bias, bias_bytes);
        const bs::LinearInput input{memory(x, x_bytes), x_type,
                                    x_stride,           form.numbers ? &*form.numbers : nullptr,
                                    form.block,         form.block_rows,
                                    form.coded,         parameters(form.given)};
        if (activation < 0 || activation > int(bs::Activation::kSilu)) {
          bs::refuse("activation", int64_t{activation}, "0 to 4");
        }
        const bs::LinearOutput output{memory(y, y_bytes), y_type, y_stride,
                                      bias != 0 ? &bias_memory : nullptr,
                                      bs::Activation(activation)};
        bs::linear(weight, rows, input, output, host_of(host, threads));
      });

  m.def("isa", [] { return std::string(bs::chosen_isa()); });
  m.def("available_isas", [] { return std::string(bs::available_isas()); });
  m.def("choose_isa", [](const std::string& name) { return bs::choose_isa(name.c_str()); });
  m.def("within", &within);
  m.def("openmp_found", [] { return bs::openmp_found(); });
  m.def("pool_threads", [] { return bs::pool_host(0).threads; });
  m.def("openmp_threads", [] { return bs::openmp_host(0).threads; });
}
