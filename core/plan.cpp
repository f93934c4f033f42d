#include "plan.h"

#include <algorithm>
#include <cstdlib>

#include "argument_error.h"
#include "block_params.h"
#include "half.h"
#include "within.h"

namespace bs {

namespace {

constexpr int64_t kLargest = (int64_t{1} << 59) - 1;  // elements; times 16 bits still an int64

template <size_t N>
int index_of(const char* argument, const std::string& name, const char* const (&names)[N]) {
  std::string allowed;
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return int(i);
    allowed += (i ? ", " : "") + std::string(names[i]);
  }
  refuse(argument, name, "allowed are " + allowed);
}

int format_of(const char* argument, const std::string& name) {
  for (int i = 0; i < kFormatCount; ++i) {
    if (name == kFormats[i].name) return i;
  }
  refuse(argument, name, "a row of FORMATS");
}

constexpr const char* kFamilies[] = {"mx", "affine", "tensor_scaled"};
constexpr const char* kRules[] = {"floor",     "ceil",    "even",       "rceil", "mse",
                                  "symmetric", "no_clip", "asymmetric", "amax"};
constexpr const char* kRoundings[] = {"half_even",   "half_away",  "half_up",
                                      "toward_zero", "stochastic", "half_zero"};
constexpr const char* kNonfinite[] = {"block", "pass", "nan_zero", "inf_large"};

std::string between(int64_t low, int64_t high) {
  return "from " + std::to_string(low) + " to " + std::to_string(high);
}

// A positive finite code of fp8_e4m3.
uint8_t scale_code(const char* argument, int code) {
  if (code < 0 || code > 126) refuse(argument, int64_t{code}, "from 0 to 126");
  return uint8_t(code);
}

void check_consistent(const Numbers& n) {
  const Format& element = n.element_format();
  const Format& scale = n.scale_format();
  const bool fixed = element.kind == Kind::kFixed;
  const bool small = element.bits <= 16 && element.kind != Kind::kExponent && n.element < k_f32;
  if (!small) refuse("element", element.name, "an element format");
  bool fits = false;
  const int rule = int(n.rule);
  switch (n.family) {
    case Family::kMx:
      fits = n.scale == k_e8m0 && (!fixed || element.symmetric()) && rule <= int(Rule::kMse);
      break;
    case Family::kAffine:
      fits = (n.scale == k_f32 || n.scale == k_bf16 || n.scale == k_f16) && !element.symmetric() &&
             rule > int(Rule::kMse) && rule < int(Rule::kAmax);
      break;
    case Family::kTensorScaled:
      fits = n.scale == k_fp8_e4m3 && !fixed && n.rule == Rule::kAmax;
      break;
  }
  if (!fits) {
    refuse("scale", scale.name,
           std::string("one that goes with element '") + element.name + "' and rule '" +
               kRules[rule] + "'");
  }
  if (n.zero_point && !(n.family == Family::kAffine && fixed)) {
    refuse("zero_point", int64_t{1}, std::string("0: '") + element.name + "' has no zero points");
  }
  const int least = element.symmetric() ? element.min_code - 1 : -(1 << 15);
  const int greatest = element.symmetric() ? element.min_code : 0;
  if (n.int_low < least || n.int_low > greatest) {
    refuse("int_low", int64_t{n.int_low}, between(least, greatest));
  }
  if (rounds_up_one_sided(n) && n.nonfinite != Nonfinite::kPass) {
    refuse("nonfinite", "another", "pass, for rule 'even' with the whole range of codes");
  }
  if (!n.clamps && n.has_codes) refuse("clamps", int64_t{0}, "1: stored scales are bytes");
  if (fixed && !element.symmetric()) {
    if (n.quant_min < element.min_code || n.quant_min >= n.quant_max) {
      refuse("quant_min", int64_t{n.quant_min},
             between(element.min_code, int64_t{n.quant_max} - 1) + ", below quant_max");
    }
    if (n.quant_max > element.max_code) {
      refuse("quant_max", int64_t{n.quant_max}, between(n.quant_min, element.max_code));
    }
  }
}

void check_sub_blocks(const Numbers& n) {
  if (n.sub_block < 0 || n.sub_block > 1 << 16) {
    refuse("sub_block", int64_t{n.sub_block}, between(0, 1 << 16));
  }
  if (n.sub_shift < 0 || n.sub_shift > 8) refuse("sub_shift", int64_t{n.sub_shift}, between(0, 8));
  if (n.sub_block == 0) return;
  const bool fits = n.family == Family::kMx && n.element_format().symmetric() &&
                    n.rule == Rule::kFloor && n.rounding != Rounding::kStochastic &&
                    n.nonfinite == Nonfinite::kBlock && !n.has_codes;
  if (!fits) {
    refuse("sub_block", int64_t{n.sub_block},
           "0, or with integers that share a power of two by rule 'floor', not stochastic, "
           "NaN for its block, without codes");
  }
}

void check_address(const std::string& argument, const unsigned char* data, size_t alignment) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % alignment != 0) {
    refuse(argument + " address", int64_t(address),
           "a multiple of " + std::to_string(alignment) + ", the size of an element");
  }
}

// Where element 0 lies: where steps go backward, not at the start of the memory.
unsigned char* first_of(const Tensor& t, const std::vector<int64_t>& shape) {
  int64_t back = 0;
  if (t.memory.data == nullptr) return nullptr;
  for (size_t i = 0; i < t.strides.size(); ++i) {
    if (t.strides[i] < 0 && shape[i] > 0) back -= t.strides[i] * (shape[i] - 1);
  }
  return t.memory.data + back * kElementSize[t.type];
}

// The elements that shape and strides reach must lie inside the memory.
void check_tensor(const std::string& argument, const Tensor& t, const std::vector<int64_t>& shape,
                  int64_t size) {
  if (t.type < 0 || t.type > 2) {
    refuse(argument + " type", int64_t{t.type}, "0 (f32), 1 (bf16) or 2 (f16)");
  }
  int64_t last = size - 1;
  if (!t.strides.empty()) {
    if (t.strides.size() != shape.size()) {
      refuse(argument + " strides", std::to_string(t.strides.size()) + " of them",
             "one for each of " + std::to_string(shape.size()) + " dimensions");
    }
    last = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      const int64_t stride = t.strides[i];
      const int64_t steps = std::max<int64_t>(shape[i], 1) - 1;
      const int64_t length = stride >= -kLargest && stride < 0 ? -stride : stride;
      if (length < 0 || length > kLargest || (length > 0 && steps > (kLargest - last) / length)) {
        refuse(argument + " stride", stride, "one of those that together reach less than 2^59");
      }
      last += length * steps;
    }
  }
  if (size == 0) return;
  const size_t bytes = size_t(last + 1) * size_t(kElementSize[t.type]);
  if (t.memory.data == nullptr) refuse(argument + " address", int64_t{0}, "that of memory");
  if (bytes > t.memory.bytes) {
    refuse(argument + " bytes", int64_t(t.memory.bytes), "at least " + std::to_string(bytes));
  }
  check_address(argument, t.memory.data, size_t(kElementSize[t.type]));
}

void check_memory(const std::string& argument, const Memory& m, size_t bytes, size_t alignment) {
  if (m.bytes != bytes) {
    refuse(argument + " bytes", int64_t(m.bytes), "exactly " + std::to_string(bytes));
  }
  if (bytes != 0 && m.data == nullptr) refuse(argument + " address", int64_t{0}, "that of memory");
  check_address(argument, m.data, alignment);
}

// Bit patterns of stored scales: positive and finite.
template <class Bits, class ToFloat>
void check_positive(const Memory& scales, Bits infinity, ToFloat to_float) {
  const auto* all = reinterpret_cast<const Bits*>(scales.data);
  const size_t count = scales.bytes / sizeof(Bits);
  if (all_within<Bits>(all, count, 1, Bits(infinity - 1))) return;
  const auto* bad = std::find_if_not(
      all, all + count, [&](Bits bits) { return is_within<Bits>(bits, 1, Bits(infinity - 1)); });
  refuse("scale", double{to_float(*bad)}, "positive and finite, every one");
}

void check_scale_values(const Numbers& n, const Memory& scales) {
  switch (n.scale) {
    case k_f32:
      return check_positive<uint32_t>(scales, kInfBits, float_of);
    case k_bf16:
      return check_positive<uint16_t>(scales, 0x7f80, bfloat_to_float);
    case k_f16:
      return check_positive<uint16_t>(scales, 0x7c00, half_to_float);
    case k_fp8_e4m3:
      if (!all_within<uint8_t>(scales.data, scales.bytes, 0, 0x7f)) {
        refuse("scale", "a negative fp8_e4m3 code", "from 0x00 to 0x7f, where 0x7f is NaN");
      }
      return;
    default:
      return;  // every code of e8m0 is a scale
  }
}

void check_zero_point_values(const Numbers& n, const int32_t* zeros, size_t count) {
  const auto low = uint32_t(n.quant_min), high = uint32_t(n.quant_max);
  if (all_within<uint32_t>(zeros, count, low, high)) return;
  const auto* bad = std::find_if_not(
      zeros, zeros + count, [&](int32_t zero) { return is_within(uint32_t(zero), low, high); });
  refuse("zero_point", int64_t{*bad}, between(n.quant_min, n.quant_max));
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
  n.clamps = names.clamps;
  n.flushes = names.flushes;
  n.least_scale = scale_code("least_scale", names.least_scale);
  n.zero_scale = scale_code("zero_scale", names.zero_scale);
  n.int_low = names.int_low;
  n.sub_block = names.sub_block;
  n.sub_shift = names.sub_shift;
  n.zero_signs[0] = names.zero_of_zero;
  n.zero_signs[1] = names.zero_of_underflow;
  n.zero_signs[2] = names.zero_of_tiny;
  check_consistent(n);
  check_sub_blocks(n);
  return n;
}

Plan::Plan(const Numbers& numbers, std::vector<int64_t> shape, std::vector<int64_t> block)
    : numbers_(numbers), shape_(std::move(shape)), block_(std::move(block)) {
  if (shape_.size() > size_t(kMaxRank)) {
    refuse("shape", std::to_string(shape_.size()) + " dimensions",
           "at most " + std::to_string(kMaxRank));
  }
  if (shape_.size() != block_.size()) {
    refuse("block", std::to_string(block_.size()) + " entries",
           "one for each of " + std::to_string(shape_.size()) + " dimensions");
  }
  for (size_t i = 0; i < shape_.size(); ++i) {
    if (shape_[i] < 0) refuse("shape", shape_[i], "no dimension below 0");
    if (block_[i] < 0) refuse("block", block_[i], "positive, or 0 for a whole dimension");
    const int64_t n = std::max<int64_t>(shape_[i], 1);
    if (n > kLargest / size_) refuse("shape", shape_[i], "fewer than 2^59 elements in all");
    size_ *= n;
  }
  size_t wide = 0;
  for (int64_t b : block_) {
    if (numbers_.sub_block == 0 || b == 1) continue;
    if (b % numbers_.sub_block != 0 || ++wide > 1) {
      refuse("block", b, "along one dimension and a multiple of the sub-block");
    }
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
  coded_ =
      Geometry::make(shape_, block_, {}, {}, element.stored_bits(), row_bits_, element.packed());
}

size_t Plan::scale_bytes() const { return size_t(scale_count_) * scale_size(numbers_); }

Job Plan::job(const Parameters& params, bool need_scales) const {
  if (kernels() == nullptr) {
    const char* asked = std::getenv("BLOCKSCALE_ISA");
    refuse("BLOCKSCALE_ISA", asked ? asked : "", std::string("one of ") + available_isas());
  }
  Job job;
  job.numbers = numbers_;
  job.scales = params.given ? Scales::kGiven : Scales::kChosen;
  job.tensor_scale_given = params.tensor_scale_given;
  job.params.tensor_scale = params.tensor_scale;
  if (params.given && !numbers_.has_codes) {
    refuse("scale", "given", "none: this dialect has no stored scales");
  }
  if (params.given || need_scales) {
    const auto size = scale_size(numbers_);
    check_memory("scale", params.scales, scale_bytes(), size);
    job.params.scales = params.scales.data;
    if (params.given) check_scale_values(numbers_, params.scales);
    if (numbers_.zero_point) {
      const size_t count = size_t(scale_count_);
      check_memory("zero_point", params.zero_points, count * sizeof(int32_t), alignof(int32_t));
      job.params.zero_points = reinterpret_cast<int32_t*>(params.zero_points.data);
      if (params.given) check_zero_point_values(numbers_, job.params.zero_points, count);
    }
  }
  if (numbers_.family == Family::kTensorScaled && (params.given || params.tensor_scale_given) &&
      !is_within(bits_of(params.tensor_scale), 1u, kInfBits - 1)) {
    refuse("tensor_scale", double{params.tensor_scale}, "positive and finite");
  }
  return job;
}

void Plan::fake_quantize(const Tensor& x, const Tensor& y, const Parameters& params, uint64_t seed,
                         const Host& host) const {
  check_tensor("x", x, shape_, size_);
  check_tensor("out", y, shape_, size_);
  if (x.type != y.type) {
    refuse("out type", int64_t{y.type}, std::to_string(x.type) + ", that of x");
  }
  const bool same = x.memory.data == y.memory.data && x.strides == y.strides;
  if (!same && overlap(x.memory, y.memory)) {
    refuse("out", "overlaps x", "x itself, or memory of its own");
  }
  Job job = this->job(params, false);
  job.geometry = x.strides.empty() && y.strides.empty()
                     ? dense_
                     : Geometry::make(shape_, block_, x.strides, y.strides, 1, 0);
  // In memory order, if no order of elements or stored blocks matters.
  const bool ordered =
      params.given || numbers_.rounding == Rounding::kStochastic || numbers_.rule == Rule::kMse;
  if (!y.strides.empty() && !ordered) job.geometry.sort_by_output();
  job.x = first_of(x, shape_);
  job.x_type = TensorType(x.type);
  job.y = first_of(y, shape_);
  job.seed = seed;
  bs::fake_quantize(job, host);
}

float Plan::quantize(const Tensor& x, const Memory& codes, const Parameters& params, uint64_t seed,
                     const Host& host) const {
  if (!numbers_.has_codes) refuse("dialect", "one without codes", "it only fake-quantizes");
  check_tensor("x", x, shape_, size_);
  const size_t alignment = numbers_.element_format().stored_bits() == 16 ? 2 : 1;
  check_memory("codes", codes, code_bytes_, alignment);
  if (overlap(x.memory, codes)) refuse("codes", "overlap x", "memory of their own");
  Job job = this->job(params, true);
  const int bits = numbers_.element_format().stored_bits();
  job.geometry = x.strides.empty()
                     ? coded_
                     : Geometry::make(shape_, block_, x.strides, {}, bits, row_bits_, bits < 8);
  job.x = first_of(x, shape_);
  job.x_type = TensorType(x.type);
  job.y = codes.data;
  job.seed = seed;
  return bs::quantize(job, host);
}

float Plan::choose_params(const Tensor& x, const Parameters& params, const Host& host) const {
  check_tensor("x", x, shape_, size_);
  if (params.given) refuse("scale", "given", "room for the chosen ones");
  if (!numbers_.has_codes) refuse("dialect", "one without codes", "it has no stored scales");
  Job job = this->job(params, true);
  job.geometry = x.strides.empty() ? dense_ : Geometry::make(shape_, block_, x.strides, {}, 1, 0);
  job.x = first_of(x, shape_);
  job.x_type = TensorType(x.type);
  return bs::choose_params(job, host);
}

void Plan::check_stored(const Memory& codes, const Parameters& params) const {
  if (!params.given) refuse("scale", "not given", "needed to decode");
  check_memory("codes", codes, code_bytes_, numbers_.element_format().stored_bits() == 16 ? 2 : 1);
  job(params, true);
}

void Plan::dequantize(const Memory& codes, const Tensor& y, const Parameters& params,
                      const Host& host) const {
  check_stored(codes, params);
  check_tensor("out", y, shape_, size_);
  if (overlap(y.memory, codes)) refuse("out", "overlaps codes", "memory of its own");
  Job job = this->job(params, true);
  const int bits = numbers_.element_format().stored_bits();
  // Codes are the input here: the strides in bits are those of x.
  std::vector<int64_t> code_strides(shape_.size());
  int64_t stride = bits;
  for (size_t i = shape_.size(); i-- > 0;) {
    code_strides[i] = stride;
    stride = i + 1 == shape_.size() ? row_bits_ : stride * shape_[i];
  }
  job.geometry = Geometry::make(shape_, block_, code_strides, y.strides, 1, 0, bits < 8);
  job.x = codes.data;
  job.y = first_of(y, shape_);
  job.y_type = TensorType(y.type);
  bs::dequantize(job, host);
}

}  // namespace bs
