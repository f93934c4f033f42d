#include "block_params.h"

#include <algorithm>
#include <utility>

#include "half.h"

namespace bs {

namespace {

// Writes n float32 scales in stored form.
void store_scales(const Maker& maker, const float* scale, size_t n, int64_t at) {
  if (maker.stored.scales == nullptr) return;
  auto* halves = static_cast<uint16_t*>(maker.stored.scales) + at;
  switch (maker.numbers.scale) {
    case k_f32:
      std::copy_n(scale, n, static_cast<float*>(maker.stored.scales) + at);
      break;
    case k_bf16:
      for (size_t i = 0; i < n; ++i) halves[i] = float_to_bfloat(scale[i]);
      break;
    default:
      for (size_t i = 0; i < n; ++i) halves[i] = float_to_half(scale[i]);
  }
}

uint8_t* codes_at(const Maker& maker, int64_t at) {
  return maker.stored.scales == nullptr ? nullptr : static_cast<uint8_t*>(maker.stored.scales) + at;
}

void note_overflow(const Maker& maker, ParamBuffer& buffer, size_t n) {
  const BlockParams p = buffer.params();
  buffer.overflows = maker.kernels.overflows(p.scale, p.low, p.high, n);
}

void finish_affine(const Maker& maker, ParamBuffer& buffer, size_t n) {
  const BlockParams p = buffer.params();
  maker.kernels.affine_params(maker.numbers, n, p.scale, p.zero, p.factor, p.low, p.high);
  note_overflow(maker, buffer, n);
}

// From exponents that stand in the buffer.
void finish_mx(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at) {
  const BlockParams p = buffer.params();
  const int32_t* s = buffer.exponents();
  maker.kernels.mx_params(maker.numbers, buffer.extremes().amax, s, n, p.factor, p.scale,
                          buffer.lift(), codes_at(maker, at));
  int32_t least = 0;
  for (size_t i = 0; i < n; ++i) least = s[i] < least ? s[i] : least;
  buffer.lifted = least < -127;
  note_overflow(maker, buffer, n);
}

// Where codes go one further down: what is below 0 has the exponent that needs no rounding up.
void one_sided_exponents(const Maker& maker, ParamBuffer& buffer, size_t n) {
  constexpr size_t kPart = 64;
  const Extremes e = buffer.extremes();
  Numbers plain = maker.numbers;
  plain.rule = Rule::kFloor;
  int32_t other[kPart];
  for (size_t i = 0; i < n; i += kPart) {
    const size_t part = std::min(kPart, n - i);
    maker.kernels.mx_exponents(plain, e.negative + i, part, other);
    for (size_t j = 0; j < part; ++j) {
      buffer.exponents()[i + j] = std::max(buffer.exponents()[i + j], other[j]);
    }
  }
}

}  // namespace

ParamBuffer::ParamBuffer(const Numbers& numbers, size_t capacity)
    : n_((capacity + 15) / 16 * 16),
      memory_(n_ * (kArrays + (numbers.rule == Rule::kMse ? 12 : 0))) {
  uint32_t* at = memory_.data();
  auto take = [&at, this] { return std::exchange(at, at + n_); };
  params_.factor = reinterpret_cast<float*>(take());
  params_.scale = reinterpret_cast<float*>(take());
  params_.low = reinterpret_cast<float*>(take());
  params_.high = reinterpret_cast<float*>(take());
  params_.zero = reinterpret_cast<int32_t*>(take());
  extremes_.amax = take();
  extremes_.negative = take();
  exponents_ = reinterpret_cast<int32_t*>(take());
  lift_ = reinterpret_cast<float*>(take());
  codes_ = reinterpret_cast<uint8_t*>(take());
  if (numbers.rule == Rule::kMse) {
    candidates_ = reinterpret_cast<double*>(at);
    sums_ = candidates_ + 3 * n_;
  }
  // Limits that no zero point shifts are the same in every block.
  const Format& element = numbers.element_format();
  const bool fixed = element.kind == Kind::kFixed;
  const float step = 1.0f / float(1 << element.mantissa_bits);
  for (size_t i = 0; i < n_; ++i) {
    params_.low[i] = fixed ? float(numbers.int_low) * step : -element.max;
    params_.high[i] = element.max;
    params_.zero[i] = 0;
  }
}

BlockParams ParamBuffer::params_from(size_t block) const {
  return {params_.factor + block, params_.scale + block, params_.low + block, params_.high + block,
          params_.zero + block};
}

void ParamBuffer::clear_extremes(size_t blocks) {
  std::fill_n(extremes_.amax, blocks, 0u);
  std::fill_n(extremes_.negative, blocks, 0u);
}

size_t scale_size(const Numbers& numbers) { return size_t(numbers.scale_format().bits) / 8; }

void params_from_extremes(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at) {
  const Numbers& numbers = maker.numbers;
  const Kernels& kernels = maker.kernels;
  const BlockParams p = buffer.params();
  const Extremes e = buffer.extremes();
  switch (numbers.family) {
    case Family::kMx:
      kernels.mx_exponents(numbers, e.amax, n, buffer.exponents());
      if (rounds_up_one_sided(numbers)) one_sided_exponents(maker, buffer, n);
      finish_mx(maker, buffer, n, at);
      break;
    case Family::kTensorScaled: {
      uint8_t* codes = codes_at(maker, at);
      if (codes == nullptr) codes = buffer.codes();
      const float t = maker.stored.tensor_scale;
      kernels.tensor_scaled_codes(numbers, e.amax, n, t, codes);
      kernels.tensor_scaled_params(numbers, codes, n, t, p.factor, p.scale);
      note_overflow(maker, buffer, n);
      break;
    }
    case Family::kAffine:
      kernels.affine_scales(numbers, e.negative, e.amax, n, maker.x_type, p.scale, p.zero);
      store_scales(maker, p.scale, n, at);
      if (maker.stored.zero_points != nullptr)
        std::copy_n(p.zero, n, maker.stored.zero_points + at);
      finish_affine(maker, buffer, n);
  }
}

void params_from_exponents(const Maker& maker, ParamBuffer& buffer, size_t n) {
  finish_mx(maker, buffer, n, 0);
}

void params_from_stored(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at) {
  const Numbers& numbers = maker.numbers;
  const BlockParams p = buffer.params();
  const auto* scales = static_cast<const uint8_t*>(maker.stored.scales);
  scales += size_t(at) * scale_size(numbers);
  if (numbers.family == Family::kTensorScaled) {
    maker.kernels.tensor_scaled_params(numbers, scales, n, maker.stored.tensor_scale, p.factor,
                                       p.scale);
    note_overflow(maker, buffer, n);
    return;
  }
  maker.kernels.stored_scales(numbers, scales, n, p.scale);
  if (numbers.family == Family::kMx) {
    for (size_t b = 0; b < n; ++b) p.factor[b] = 1.0f / p.scale[b];  // exact
    note_overflow(maker, buffer, n);
    return;
  }
  if (maker.stored.zero_points != nullptr) {  // whatever is given, sums with codes stay small
    const int32_t* zeros = maker.stored.zero_points + at;
    const int32_t low = numbers.quant_min, high = numbers.quant_max;
    for (size_t b = 0; b < n; ++b) p.zero[b] = std::clamp(zeros[b], low, high);
  }
  finish_affine(maker, buffer, n);
}

namespace {
int clamped(int s) { return s < -127 ? -127 : s > 127 ? 127 : s; }
constexpr int kSteps[] = {0, 1, -1};
}  // namespace

void mse_candidates(const Maker& maker, ParamBuffer& buffer, size_t n) {
  maker.kernels.mx_exponents(maker.numbers, buffer.extremes().amax, n, buffer.exponents());
  for (size_t b = 0; b < n; ++b) {
    for (size_t i = 0; i < 3; ++i) {
      const int s = clamped(buffer.exponents()[b] + kSteps[i]);
      buffer.candidates()[3 * b + i] = double(power_of_two(s));
      buffer.sums()[3 * b + i] = 0;
    }
  }
}

void mse_choose(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at) {
  for (size_t b = 0; b < n; ++b) {
    size_t best = 0;
    for (size_t i = 1; i < 3; ++i) {
      if (buffer.sums()[3 * b + i] < buffer.sums()[3 * b + best]) best = i;
    }
    buffer.exponents()[b] = clamped(buffer.exponents()[b] + kSteps[best]);
  }
  finish_mx(maker, buffer, n, at);
}

float tensor_scale_of(uint32_t amax, const Numbers& numbers) {
  if (amax == 0) return 1;
  const float t = float_of(amax) / (numbers.scale_format().max * numbers.element_format().max);
  return t > 0x1p-149f ? t : 0x1p-149f;
}

}  // namespace bs
