#include "block_params.h"

#include <cstring>

#include "half.h"
#include "params.h"

namespace bs {

namespace {

const float kNan = float_of(0x7fc00000);

float read_scale(const Maker& maker, int64_t at) {
  const Format& format = maker.numbers.scale_format();
  if (format.bits == 8) return decode_scale(static_cast<const uint8_t*>(maker.stored.scales)[at], format);
  if (format.bits == 32) return static_cast<const float*>(maker.stored.scales)[at];
  const uint16_t bits = static_cast<const uint16_t*>(maker.stored.scales)[at];
  return maker.numbers.scale == k_bf16 ? bfloat_to_float(bits) : half_to_float(bits);
}

void write_scale(const Maker& maker, int64_t at, float scale) {
  if (maker.stored.scales == nullptr) return;
  switch (maker.numbers.scale) {
    case k_f32:
      static_cast<float*>(maker.stored.scales)[at] = scale;
      break;
    case k_bf16:
      static_cast<uint16_t*>(maker.stored.scales)[at] = float_to_bfloat(scale);
      break;
    default:
      static_cast<uint16_t*>(maker.stored.scales)[at] = float_to_half(scale);
  }
}

void write_code(const Maker& maker, int64_t at, int code) {
  if (maker.stored.scales != nullptr) static_cast<uint8_t*>(maker.stored.scales)[at] = uint8_t(code);
}

constexpr float kLift = 0x1p16f;

// Parameters of block b from its multiplier and zero point.
void set(const Numbers& numbers, ParamBuffer& buffer, size_t b, float scale, int32_t zero) {
  const BlockParams p = buffer.params();
  const Format& element = numbers.element_format();
  const bool affine_fixed = numbers.family == Family::kAffine && element.kind == Kind::kFixed;
  const float low = affine_fixed ? float(numbers.quant_min - zero)
                    : element.kind == Kind::kFixed
                        ? float(numbers.int_low) / float(1 << element.mantissa_bits)
                        : -element.max;
  const float high = affine_fixed ? float(numbers.quant_max - zero) : element.max;
  p.scale[b] = scale;
  p.low[b] = low;
  p.high[b] = high;
  p.zero[b] = zero;
  if (multiplies(numbers)) {
    p.factor[b] = 1.0f / scale;  // exact in MX: a power of two, 2^-127 … 2^127
  } else {
    p.factor[b] = scale == 0 ? float_of(kInfBits) : scale;  // x / Inf: a zero with the sign of x
  }
  const float reach = high > -low ? high : -low;
  buffer.overflows |= double(reach) * double(scale) > double(kFloatMax);
}

// MX: the block's exponent s, if it is not spoilt.
void set_mx(const Maker& maker, ParamBuffer& buffer, size_t b, int64_t at, int s) {
  const bool spoilt = spoils(buffer.extremes().amax[b], maker.numbers.nonfinite);
  write_code(maker, at, spoilt ? kE8m0Nan : s + 127);
  const bool lifted = s < -127;
  buffer.lifted |= lifted;
  buffer.lift()[b] = lifted ? kLift : 1;
  set(maker.numbers, buffer, b, spoilt ? kNan : power_of_two(lifted ? s + 16 : s), 0);
}

// Two levels: x is divided by f32(b · t), or multiplied by f32(f32(1 / t) / b).
void set_tensor_scaled(const Maker& maker, ParamBuffer& buffer, size_t b, uint8_t code) {
  const float value = decode_scale(code, maker.numbers.scale_format());
  const float t = maker.stored.tensor_scale;
  set(maker.numbers, buffer, b, value * t, 0);
  if (maker.numbers.reciprocal) {
    const float inverse = 1.0f / t / value;
    buffer.params().factor[b] = value * t == 0 ? 0 : inverse;
  }
}

}  // namespace

ParamBuffer::ParamBuffer(size_t n) : memory_(n * 4 + n * 6) {
  auto* words = reinterpret_cast<unsigned char*>(memory_.data() + n * 6);
  auto take = [&words, n] {
    unsigned char* at = words;
    words += n * 4;
    return at;
  };
  params_.factor = reinterpret_cast<float*>(take());
  params_.scale = reinterpret_cast<float*>(take());
  params_.low = reinterpret_cast<float*>(take());
  params_.high = reinterpret_cast<float*>(take());
  params_.zero = reinterpret_cast<int32_t*>(take());
  extremes_.amax = reinterpret_cast<uint32_t*>(take());
  extremes_.negative = reinterpret_cast<uint32_t*>(take());
  lift_ = reinterpret_cast<float*>(take());
  candidates_ = memory_.data();
  sums_ = memory_.data() + n * 3;
}

BlockParams ParamBuffer::params_from(size_t block) const {
  return {params_.factor + block, params_.scale + block, params_.low + block, params_.high + block,
          params_.zero + block};
}

Extremes ParamBuffer::extremes_from(size_t block) const {
  return {extremes_.amax + block, extremes_.negative + block};
}

void ParamBuffer::clear_extremes(size_t blocks) {
  std::memset(extremes_.amax, 0, blocks * sizeof(uint32_t));
  std::memset(extremes_.negative, 0, blocks * sizeof(uint32_t));
}

size_t scale_size(const Numbers& numbers) { return size_t(numbers.scale_format().bits) / 8; }

void params_from_extremes(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at) {
  const Numbers& numbers = maker.numbers;
  const Extremes e = buffer.extremes();
  for (size_t b = 0; b < n; ++b) {
    const int64_t to = at + int64_t(b);
    if (numbers.family == Family::kAffine) {
      const Affine affine = affine_of(e.negative[b], e.amax[b], numbers, maker.x_type);
      write_scale(maker, to, affine.scale);
      if (maker.stored.zero_points != nullptr) maker.stored.zero_points[to] = affine.zero_point;
      set(numbers, buffer, b, affine.scale, affine.zero_point);
    } else if (numbers.family == Family::kMx) {
      set_mx(maker, buffer, b, to, mx_exponent(e.amax[b], numbers));
    } else {
      const Format& format = numbers.scale_format();
      const bool spoilt = spoils(e.amax[b], numbers.nonfinite);
      const float t = maker.stored.tensor_scale;
      const int code = spoilt ? (1 << (format.bits - 1)) - 1
                              : tensor_scaled_code(e.amax[b], t, numbers);
      write_code(maker, to, code);
      set_tensor_scaled(maker, buffer, b, uint8_t(code));
    }
  }
}

void params_from_stored(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at) {
  for (size_t b = 0; b < n; ++b) {
    const int64_t from = at + int64_t(b);
    if (maker.numbers.family == Family::kTensorScaled) {
      set_tensor_scaled(maker, buffer, b, static_cast<const uint8_t*>(maker.stored.scales)[from]);
      continue;
    }
    const int32_t zero = maker.stored.zero_points ? maker.stored.zero_points[from] : 0;
    set(maker.numbers, buffer, b, read_scale(maker, from), zero);
  }
}

namespace {
int clamped(int s) { return s < -127 ? -127 : s > 127 ? 127 : s; }
constexpr int kSteps[] = {0, 1, -1};
}  // namespace

void mse_candidates(const Maker& maker, ParamBuffer& buffer, size_t n) {
  for (size_t b = 0; b < n; ++b) {
    const uint32_t amax = buffer.extremes().amax[b];
    const int floor = mx_exponent(amax, maker.numbers);
    for (int i = 0; i < 3; ++i) {
      buffer.candidates()[3 * b + size_t(i)] = power_of_two(clamped(floor + kSteps[i]));
      buffer.sums()[3 * b + size_t(i)] = 0;
    }
  }
}

void mse_choose(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at) {
  for (size_t b = 0; b < n; ++b) {
    size_t best = 0;
    for (size_t i = 1; i < 3; ++i) {
      if (buffer.sums()[3 * b + i] < buffer.sums()[3 * b + best]) best = i;
    }
    const int floor = mx_exponent(buffer.extremes().amax[b], maker.numbers);
    set_mx(maker, buffer, b, at + int64_t(b), clamped(floor + kSteps[best]));
  }
}

}  // namespace bs
