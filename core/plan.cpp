#include "plan.h"

#include <algorithm>
#include <stdexcept>

#include "block_params.h"

namespace bs {

namespace {

constexpr int64_t kLargest = (int64_t{1} << 59) - 1;  // elements; times 16 bits still an int64

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

template <size_t N>
int index_of(const char* argument, const std::string& name, const char* const (&names)[N]) {
  std::string allowed;
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return int(i);
    allowed += (i ? ", " : "") + std::string(names[i]);
  }
  refuse(std::string(argument) + " = '" + name + "': allowed are " + allowed);
}

int format_of(const char* argument, const std::string& name) {
  for (int i = 0; i < kFormatCount; ++i) {
    if (name == kFormats[i].name) return i;
  }
  refuse(std::string(argument) + " = '" + name + "': not a row of FORMATS");
}

constexpr const char* kFamilies[] = {"mx", "affine", "tensor_scaled"};
constexpr const char* kRules[] = {"floor",     "ceil",    "even",       "rceil", "mse",
                                  "symmetric", "no_clip", "asymmetric", "amax"};
constexpr const char* kRoundings[] = {"half_even",   "half_away",  "half_up",
                                      "toward_zero", "stochastic", "half_zero"};
constexpr const char* kNonfinite[] = {"block", "pass", "nan_zero", "inf_large"};

// A positive finite code of fp8_e4m3.
uint8_t scale_code(const char* argument, int code) {
  if (code < 0 || code > 126) refuse(std::string(argument) + ": must be 0 … 126");
  return uint8_t(code);
}

void check_consistent(const Numbers& n) {
  const Format& element = n.element_format();
  const Format& scale = n.scale_format();
  const bool fixed = element.kind == Kind::kFixed;
  const bool small = element.bits <= 16 && element.kind != Kind::kExponent && n.element < k_f32;
  if (!small) refuse(std::string("element = '") + element.name + "': not an element format");
  bool fits = false;
  const int rule = int(n.rule);
  switch (n.family) {
    case Family::kMx:
      fits = n.scale == k_e8m0 && (!fixed || n.element == k_mxint8) && rule <= int(Rule::kMse);
      break;
    case Family::kAffine:
      fits = (n.scale == k_f32 || n.scale == k_bf16 || n.scale == k_f16) && n.element != k_mxint8 &&
             rule > int(Rule::kMse) && rule < int(Rule::kAmax);
      break;
    case Family::kTensorScaled:
      fits = n.scale == k_fp8_e4m3 && !fixed && n.rule == Rule::kAmax;
      break;
  }
  if (!fits) {
    refuse(std::string("element '") + element.name + "', scale '" + scale.name +
           "' and the rule do not go together");
  }
  if (n.zero_point && !(n.family == Family::kAffine && fixed))
    refuse("zero_point: integers have one");
  if (n.int_low < -128 || n.int_low > 0) refuse("int_low: must be -128 … 0");
  if (fixed && n.element != k_mxint8) {
    const bool range = element.min_code <= n.quant_min && n.quant_min < n.quant_max &&
                       n.quant_max <= element.max_code;
    if (!range) refuse("quant_min, quant_max: out of the range of the element");
  }
}

size_t bytes_of(int64_t elements, int type) {
  return size_t(elements) * size_t(kElementSize[type]);
}

void check_type(const char* argument, int type) {
  if (type < 0 || type > 2) refuse(std::string(argument) + ": the type must be 0 (f32), 1 or 2");
}

// The elements that shape and strides reach must lie inside the memory.
void check_tensor(const char* argument, const Tensor& t, const std::vector<int64_t>& shape,
                  int64_t size) {
  check_type(argument, t.type);
  int64_t last = size - 1;
  if (!t.strides.empty()) {
    if (t.strides.size() != shape.size()) refuse(std::string(argument) + ": a stride a dimension");
    last = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      const int64_t stride = t.strides[i];
      if (stride < 0 || stride > kLargest) {
        refuse(std::string(argument) + ": stride " + std::to_string(stride) + " must be 0 … 2^59");
      }
      const int64_t steps = std::max<int64_t>(shape[i], 1) - 1;
      if (stride > 0 && steps > (kLargest - last) / stride) {
        refuse(std::string(argument) + ": strides reach too far");
      }
      last += stride * steps;
    }
  }
  if (size == 0) return;
  if (t.memory.data == nullptr || bytes_of(last + 1, t.type) > t.memory.bytes) {
    refuse(std::string(argument) + ": needs " + std::to_string(bytes_of(last + 1, t.type)) +
           " bytes, has " + std::to_string(t.memory.bytes));
  }
  if (reinterpret_cast<uintptr_t>(t.memory.data) % uintptr_t(kElementSize[t.type]) != 0) {
    refuse(std::string(argument) + ": memory is not aligned to its elements");
  }
}

void check_memory(const char* argument, const Memory& m, size_t bytes, size_t alignment) {
  if (m.bytes != bytes || (bytes != 0 && m.data == nullptr)) {
    refuse(std::string(argument) + ": needs exactly " + std::to_string(bytes) + " bytes, has " +
           std::to_string(m.bytes));
  }
  if (reinterpret_cast<uintptr_t>(m.data) % alignment != 0) {
    refuse(std::string(argument) + ": memory is not aligned to its elements");
  }
}

bool overlap(const Memory& a, const Memory& b) {
  return a.bytes != 0 && b.bytes != 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

}  // namespace

Numbers numbers_of(const NumberNames& names) {
  Numbers n;
  n.element = format_of("element", names.element);
  n.scale = format_of("scale", names.scale);
  n.family = Family(index_of("family", names.family, kFamilies));
  n.rule = Rule(index_of("rule", names.rule, kRules));
  n.rounding = Rounding(index_of("rounding", names.rounding, kRoundings));
  n.nonfinite = Nonfinite(index_of("nonfinite", names.nonfinite, kNonfinite));
  n.zero_point = names.zero_point;
  n.quant_min = names.quant_min;
  n.quant_max = names.quant_max;
  n.saturates = names.saturates;
  n.reciprocal = names.reciprocal;
  n.nearly_half = names.nearly_half;
  n.has_codes = names.has_codes;
  n.least_scale = scale_code("least_scale", names.least_scale);
  n.zero_scale = scale_code("zero_scale", names.zero_scale);
  n.int_low = names.int_low;
  n.zero_signs[0] = names.zero_of_zero;
  n.zero_signs[1] = names.zero_of_underflow;
  n.zero_signs[2] = names.zero_of_tiny;
  check_consistent(n);
  return n;
}

Plan::Plan(const Numbers& numbers, std::vector<int64_t> shape, std::vector<int64_t> block)
    : numbers_(numbers), shape_(std::move(shape)), block_(std::move(block)) {
  if (shape_.size() > size_t(kMaxRank)) refuse("shape: at most 64 dimensions");
  if (shape_.size() != block_.size()) refuse("block: one entry a dimension");
  for (size_t i = 0; i < shape_.size(); ++i) {
    if (shape_[i] < 0) refuse("shape: no dimension below 0");
    if (block_[i] < 0) refuse("block: positive, or 0 for a whole dimension");
    const int64_t n = std::max<int64_t>(shape_[i], 1);
    if (n > kLargest / size_) refuse("shape: fewer than 2^59 elements");
    size_ *= n;
  }
  for (size_t i = 0; i < shape_.size(); ++i) {
    if (shape_[i] == 0) size_ = 0;
    const int64_t b = block_[i];
    scale_count_ *= b == 0 ? 1 : (shape_[i] / b + (shape_[i] % b != 0));
  }
  const Format& element = numbers_.element_format();
  const int64_t last = shape_.empty() ? 1 : shape_.back();
  const int64_t row_bits = (last * element.stored_bits() + 7) / 8 * 8;
  const int64_t rows = size_ == 0 ? 0 : size_ / last;
  code_bytes_ = size_t(rows * (row_bits / 8));
  row_bits_ = row_bits;
  dense_ = Geometry::make(shape_, block_, {}, {}, 1, 0);
  coded_ = Geometry::make(shape_, block_, {}, {}, element.stored_bits(), row_bits_);
}

size_t Plan::scale_bytes() const { return size_t(scale_count_) * scale_size(numbers_); }

Job Plan::job(const Parameters& params, bool need_scales) const {
  if (kernels() == nullptr) {
    refuse("BLOCKSCALE_ISA: this machine has " + std::string(available_isas()));
  }
  Job job;
  job.numbers = numbers_;
  job.scales = params.given ? Scales::kGiven : Scales::kChosen;
  job.tensor_scale_given = params.tensor_scale_given;
  job.params.tensor_scale = params.tensor_scale;
  if (params.given && !numbers_.has_codes) refuse("scale: this dialect has no stored scales");
  if (params.given || need_scales) {
    const auto size = scale_size(numbers_);
    check_memory("scale", params.scales, scale_bytes(), size);
    job.params.scales = params.scales.data;
    if (numbers_.zero_point) {
      const size_t bytes = size_t(scale_count_) * sizeof(int32_t);
      check_memory("zero_point", params.zero_points, bytes, alignof(int32_t));
      job.params.zero_points = reinterpret_cast<int32_t*>(params.zero_points.data);
    }
  }
  return job;
}

void Plan::fake_quantize(const Tensor& x, const Tensor& y, const Parameters& params, uint64_t seed,
                         const Host& host) const {
  check_tensor("x", x, shape_, size_);
  check_tensor("out", y, shape_, size_);
  if (x.type != y.type) refuse("out: must have the type of x");
  const bool same = x.memory.data == y.memory.data && x.strides == y.strides;
  if (!same && overlap(x.memory, y.memory)) refuse("out: overlaps x without being x");
  Job job = this->job(params, false);
  job.geometry = x.strides.empty() && y.strides.empty()
                     ? dense_
                     : Geometry::make(shape_, block_, x.strides, y.strides, 1, 0);
  // In memory order, if no order of elements or stored blocks matters.
  const bool ordered =
      params.given || numbers_.rounding == Rounding::kStochastic || numbers_.rule == Rule::kMse;
  if (!y.strides.empty() && !ordered) job.geometry.sort_by_output();
  job.x = x.memory.data;
  job.x_type = TensorType(x.type);
  job.y = y.memory.data;
  job.seed = seed;
  bs::fake_quantize(job, host);
}

float Plan::quantize(const Tensor& x, const Memory& codes, const Parameters& params, uint64_t seed,
                     const Host& host) const {
  if (!numbers_.has_codes) refuse("dialect: it has no codes, it only fake-quantizes");
  check_tensor("x", x, shape_, size_);
  const size_t alignment = numbers_.element_format().stored_bits() == 16 ? 2 : 1;
  check_memory("codes", codes, code_bytes_, alignment);
  if (overlap(x.memory, codes)) refuse("codes: overlap x");
  Job job = this->job(params, true);
  const int bits = numbers_.element_format().stored_bits();
  job.geometry =
      x.strides.empty() ? coded_ : Geometry::make(shape_, block_, x.strides, {}, bits, row_bits_);
  job.x = x.memory.data;
  job.x_type = TensorType(x.type);
  job.y = codes.data;
  job.seed = seed;
  return bs::quantize(job, host);
}

float Plan::choose_params(const Tensor& x, const Parameters& params, const Host& host) const {
  check_tensor("x", x, shape_, size_);
  if (params.given) refuse("choose_params: chooses, and is given");
  if (!numbers_.has_codes) refuse("dialect: it has no stored scales");
  Job job = this->job(params, true);
  job.geometry = x.strides.empty() ? dense_ : Geometry::make(shape_, block_, x.strides, {}, 1, 0);
  job.x = x.memory.data;
  job.x_type = TensorType(x.type);
  return bs::choose_params(job, host);
}

void Plan::dequantize(const Memory& codes, const Tensor& y, const Parameters& params,
                      const Host& host) const {
  if (!params.given) refuse("scale: needed to decode");
  const int bits = numbers_.element_format().stored_bits();
  check_memory("codes", codes, code_bytes_, bits == 16 ? 2 : 1);
  check_tensor("out", y, shape_, size_);
  if (overlap(y.memory, codes)) refuse("out: overlaps codes");
  Job job = this->job(params, true);
  // Codes are the input here: the strides in bits are those of x.
  std::vector<int64_t> code_strides(shape_.size());
  int64_t stride = bits;
  for (size_t i = shape_.size(); i-- > 0;) {
    code_strides[i] = stride;
    stride = i + 1 == shape_.size() ? row_bits_ : stride * shape_[i];
  }
  job.geometry = Geometry::make(shape_, block_, code_strides, y.strides, 1, 0);
  job.x = codes.data;
  job.y = y.memory.data;
  job.y_type = TensorType(y.type);
  bs::dequantize(job, host);
}

}  // namespace bs
