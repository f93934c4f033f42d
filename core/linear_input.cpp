#include "linear_input.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "argument_error.h"
#include "block_params.h"
#include "float_env.h"
#include "kernels.h"
#include "linear_exact.h"

namespace bs {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

size_t divided_up(size_t a, size_t b) { return (a + b - 1) / b; }

// Those of the canonical dot product.
bool has_integers(const Numbers& n) {
  return n.family == Family::kMx && n.element != k_fp8_e4m3 && n.element != k_fp8_e5m2;
}

template <class Body>
void each(const Host& host, size_t count, size_t together, Body& body) {
  struct Range {
    Body& body;
    size_t count, together;
  } range{body, count, together};
  host.run(
      host.context, int(divided_up(count, together)),
      [](void* argument, int index) {
        const FloatEnvironment exact;
        const auto& own = *static_cast<Range*>(argument);
        const size_t from = size_t(index) * own.together;
        for (size_t i = from; i < std::min(from + own.together, own.count); ++i) own.body(i);
      },
      &range);
}

}  // namespace

Input::Input(const PackedWeight& weight, const LinearInput& input, int64_t rows)
    : w_(weight.view()),
      w_numbers_(weight.numbers()),
      in_(input),
      rows_(size_t(rows)),
      k_(size_t(weight.k())),
      operand_(choose_operand()),
      unit_(choose_unit()),
      tensor_scale_(input.given.tensor_scale) {
  if (in_.numbers == nullptr) return;
  const Numbers& n = *in_.numbers;
  code_ = code_of(n);
  code_bytes_ = divided_up(k_ * size_t(n.element_format().stored_bits()), 8);
  scale_count_ = in_.block == 0 ? 1 : divided_up(k_, size_t(in_.block));
  if (exact()) fraction_ = fraction_bits(w_.code) + fraction_bits(code_);
  scaled_ = exact() || operand_ == Operand::kInt8;
  zeros_ = operand_ == Operand::kInt8 && (n.zero_point || !n.element_format().is_signed);
  if (in_.coded || in_.given.given) {
    // All of it is checked at once, and taken row by row.
    Parameters all = in_.given;
    all.given = true;
    const Plan whole = plan(rows_);
    if (in_.coded) {
      whole.check_stored(in_.x, all);
    } else {
      whole.check_params(all);
    }
  }
}

Operand Input::choose_operand() const {
  const bool pairs = products()->find(w_.code, w_.zeros, Operand::kPairs) != nullptr;
  const Operand halves = pairs ? Operand::kPairs : Operand::kReal;
  if (in_.numbers == nullptr) {
    return TensorType(in_.type) == TensorType::kBf16 ? halves : Operand::kReal;
  }
  const Numbers& n = *in_.numbers;
  const bool blocks = w_.run == 1 && in_.block_rows == 1 && in_.block == int64_t{kBlockOfK};
  if (has_integers(n) && has_integers(w_numbers_) && blocks) {
    const bool wide = n.element == k_fp6_e3m2 || w_numbers_.element == k_fp6_e3m2;
    return wide ? Operand::kExactWide : Operand::kExact;
  }
  const Format& element = n.element_format();
  const bool whole = in_.block == 0 || size_t(in_.block) >= k_;
  const bool centred = element.is_signed && !n.zero_point;
  if (n.family == Family::kAffine && element.kind == Kind::kFixed && element.bits == 8 && whole &&
      w_.scale != ScaleKind::kE4m3 && (centred || is_integer(w_.code)) &&
      products()->find(w_.code, w_.zeros, Operand::kInt8) != nullptr) {
    return Operand::kInt8;
  }
  return n.family == Family::kMx ? halves : Operand::kReal;
}

float Input::choose_unit() const {
  if (exact()) return 1.0f;
  const bool mx = w_.scale == ScaleKind::kE8m0;
  const bool integers =
      operand_ == Operand::kInt8 ? mx || !is_integer(w_.code) : mx && is_integer(w_.code);
  return integers ? std::ldexp(1.0f, -fraction_bits(w_.code)) : 1.0f;
}

size_t Input::most_rows(size_t bytes) const {
  const bool all_at_once = in_.numbers != nullptr && !in_.coded && !in_.given.given &&
                           (in_.block_rows == 0 || (in_.numbers->family == Family::kTensorScaled &&
                                                    !in_.given.tensor_scale_given));
  if (all_at_once) return rows_;
  // Records, and codes or values before them.
  const size_t row = divided_up(k_, kBlockOfK) * (operand_bytes(operand_) + 128);
  return std::max<size_t>(bytes / std::max<size_t>(row, 1), 1);
}

Plan Input::plan(size_t count) const {
  return Plan(*in_.numbers, {int64_t(count), int64_t(k_)}, {in_.block_rows, in_.block});
}

const uint8_t* Input::codes(size_t first, size_t row) const {
  return in_.coded ? in_.x.data + (first + row) * code_bytes_ : codes_.data() + row * code_bytes_;
}

// The parameters of some rows: given, or room for those that are chosen.
Parameters Input::stored(size_t first, size_t count) const {
  const Numbers& n = *in_.numbers;
  const size_t scales = in_.block_rows == 0 ? scale_count_ : count * scale_count_;
  const size_t from = in_.block_rows == 0 ? 0 : first * scale_count_;
  Parameters p = in_.given;
  p.scales.bytes = scales * scale_size(n);
  if (n.zero_point) p.zero_points.bytes = scales * sizeof(int32_t);
  if (p.given || in_.coded) {
    p.given = true;
    p.scales.data += from * scale_size(n);
    if (n.zero_point) p.zero_points.data += from * sizeof(int32_t);
    return p;
  }
  p.scales.data = scales_.data();
  if (n.zero_point) {
    p.zero_points.data =
        const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(zero_points_.data()));
  }
  return p;
}

void Input::quantize(size_t first, size_t count, const Host& host) {
  if (in_.coded) return;
  const Numbers& n = *in_.numbers;
  codes_.resize(count * code_bytes_);
  scales_.resize(count * scale_count_ * scale_size(n));
  if (n.zero_point) zero_points_.resize(count * scale_count_);
  const size_t size = size_t(kElementSize[in_.type]);
  unsigned char* from = in_.x.data + first * size_t(in_.stride) * size;
  const size_t reach = ((count - 1) * size_t(in_.stride) + k_) * size;
  const bool dense = count == 1 || size_t(in_.stride) == k_;
  const Tensor x{{from, reach},
                 in_.type,
                 dense ? std::vector<int64_t>{} : std::vector<int64_t>{in_.stride, 1}};
  tensor_scale_ =
      plan(count).quantize(x, {codes_.data(), count * code_bytes_}, stored(first, count), 0, host);
}

void Input::decode(size_t first, size_t count, const Host& host) {
  Parameters params = stored(first, count);
  params.given = true;
  if (in_.numbers->family == Family::kTensorScaled) params.tensor_scale = tensor_scale_;
  const size_t bytes = count * k_ * sizeof(float);
  values_.resize(bytes);
  auto* from = const_cast<uint8_t*>(codes(first, 0));
  plan(count).dequantize({from, count * code_bytes_}, {{values_.data(), bytes}, 0, {}}, params,
                         host);
}

void Input::prepare(size_t first, size_t count, const Host& host) {
  slow_.clear();
  row_scale_.assign(scaled_ ? count : 0, 1.0f);
  row_zero_.assign(zeros_ ? count : 0, 0.0f);
  if (k_ == 0) {
    view_ = {nullptr, 0};
    return;
  }
  const bool real = operand_ == Operand::kReal || operand_ == Operand::kPairs;
  const bool whole = operand_ == Operand::kReal && k_ % kBlockOfK == 0;
  if (in_.numbers != nullptr) {
    quantize(first, count, host);
    if (real) decode(first, count, host);
    if (real && whole) {
      view_ = {values_.data(), k_ * sizeof(float)};
      return;
    }
    if (!real && in_.numbers->element_format().stored_bits() < 8) unpacked_.resize(count * k_);
  } else if (whole && TensorType(in_.type) == TensorType::kF32) {
    const size_t stride = size_t(in_.stride) * sizeof(float);
    view_ = {in_.x.data + first * stride, stride};
    return;
  }
  // Rows whose distance is a power of two would meet in few lines of the caches.
  const size_t record = divided_up(k_, kBlockOfK) * operand_bytes(operand_);
  view_.stride = divided_up(record, 64) * 64 + 64;
  records_.resize(count * view_.stride);
  view_.rows = records_.data();
  auto body = [&](size_t row) { prepare_row(first, row); };
  each(host, count, std::max<size_t>(16384 / k_, 1), body);
}

void Input::prepare_row(size_t first, size_t row) {
  uint8_t* to = records_.data() + row * view_.stride;
  if (operand_ == Operand::kReal || operand_ == Operand::kPairs) {
    if (in_.numbers != nullptr) {
      const uint8_t* from = values_.data() + row * k_ * sizeof(float);
      products()->real_row(from, TensorType::kF32, k_, operand_, to);
    } else {
      const size_t size = size_t(kElementSize[in_.type]);
      const uint8_t* from = in_.x.data + (first + row) * size_t(in_.stride) * size;
      products()->real_row(from, TensorType(in_.type), k_, operand_, to);
    }
    return;
  }
  const uint8_t* bytes = codes(first, row);
  const int bits = in_.numbers->element_format().stored_bits();
  if (bits < 8) {
    uint8_t* unpacked = unpacked_.data() + row * k_;
    kernels()->unpack(bytes, k_, bits, unpacked);
    bytes = unpacked;
  }
  if (exact()) {
    exact_row(bytes, first, row, to);
  } else {
    int8_row(bytes, first, row, to);
  }
}

// Whether all of a block is 0.
bool Input::blank(const uint8_t* codes, size_t block) const {
  const size_t from = block * kBlockOfK, to = std::min(from + kBlockOfK, k_);
  const int mask = is_integer(code_) ? 255 : (1 << (in_.numbers->element_format().bits - 1)) - 1;
  return std::all_of(codes + from, codes + to, [&](uint8_t code) { return (code & mask) == 0; });
}

void Input::exact_row(const uint8_t* codes, size_t first, size_t row, uint8_t* to) {
  const Parameters params = stored(first, rows_ - first);
  const uint8_t* scales = params.scales.data + row * scale_count_;
  const int low = w_.exponent_low, high = w_.exponent_high;
  // Any that fits does for a block of zeros.
  const int base = 150 - 2 * 127 - fraction_;
  const int neutral = std::clamp(1 - base - low, 0, 254);
  bool fits = magic_fits(low, high, neutral, neutral, fraction_);
  std::vector<uint8_t> changed;
  for (size_t b = 0; b < scale_count_; ++b) {
    const int scale = scales[b];
    if (magic_fits(low, high, scale, scale, fraction_) && scale != kE8m0Nan) continue;
    if (scale == kE8m0Nan) {
      row_scale_[row] = kNan;
    } else if (!blank(codes, b)) {
      fits = false;
      continue;
    }
    if (changed.empty()) changed.assign(scales, scales + scale_count_);
    changed[b] = uint8_t(neutral);
  }
  const uint8_t* used = changed.empty() ? scales : changed.data();
  if (!fits && !std::isnan(row_scale_[row])) slow_row(codes, used, row);
  const IntegerRow integers{codes, code_, false, k_};
  products()->exact_row(integers, used, w_.code, fraction_, operand_, to);
}

void Input::slow_row(const uint8_t* codes, const uint8_t* scales, size_t row) {
  SlowRow slow{row, std::vector<int16_t>(scale_count_ * kBlockOfK),
               std::vector<uint8_t>(scales, scales + scale_count_)};
  for (size_t k = 0; k < k_; ++k) slow.integers[k] = int16_t(code_integer(code_, codes[k]));
  const std::lock_guard held(lock_);
  slow_.push_back(std::move(slow));
}

void Input::int8_row(const uint8_t* codes, size_t first, size_t row, uint8_t* to) {
  const Numbers& n = *in_.numbers;
  const Parameters params = stored(first, rows_ - first);
  const size_t at = in_.block_rows == 0 ? 0 : row;
  row_scale_[row] = stored_scale(n, params.scales.data, at);
  const bool is_unsigned = !n.element_format().is_signed;
  if (zeros_) {
    const auto* zero_points = reinterpret_cast<const int32_t*>(params.zero_points.data);
    row_zero_[row] = float((n.zero_point ? zero_points[at] : 0) - (is_unsigned ? 128 : 0));
  }
  const IntegerRow integers{codes, Code::kInt8, is_unsigned, k_};
  products()->int8_row(integers, w_, to);
}

}  // namespace bs
