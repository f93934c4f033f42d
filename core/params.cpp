#include "params.h"

#include <cmath>

#include "half.h"

namespace bs {

namespace {

// What is added to the bits of amax so that their exponent field becomes that of the rule.
uint32_t rule_increment(const Numbers& numbers) {
  const Format& element = numbers.element_format();
  switch (numbers.rule) {
    case Rule::kCeil:
      return 0x7fffff;
    case Rule::kEven:
      return uint32_t{1} << (22 - element.mantissa_bits);
    case Rule::kRceil:
      return 0x7fffff - (bits_of(element.max) & 0x7fffff);
    default:
      return 0;
  }
}

// Nearest code of a small float format, half to even; magnitude at most its largest.
uint8_t encode_magnitude(float value, const Format& format) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  exponent = exponent - 1 < format.emin ? format.emin : exponent - 1;
  const double steps = std::ldexp(double(value), format.mantissa_bits - exponent);
  const auto rounded = int(std::nearbyint(steps));
  return uint8_t(rounded + ((exponent - format.emin) << format.mantissa_bits));
}

float larger(float a, float b) { return a > b ? a : b; }
float smaller(float a, float b) { return a < b ? a : b; }

}  // namespace

int mx_exponent(uint32_t amax, const Numbers& numbers) {
  const int emax = numbers.element_format().emax;
  // In that dialect E is the exponent field, whatever the mantissa, and the scale is not a byte.
  const bool by_field = numbers.nonfinite == Nonfinite::kPass;
  const int low = by_field ? -127 - emax : -127;
  if (amax == 0) return low;
  int exponent = -127;
  uint32_t mantissa = amax;
  if (amax < 0x00800000) {
    if (!by_field) {  // normalise a subnormal
      const int shift = std::countl_zero(amax) - 8;
      exponent = -126 - shift;
      mantissa = (amax << shift) & 0x7fffff;
    }
  } else if (amax >= kInfBits && numbers.rule == Rule::kRceil) {
    return 127;  // Inf / max is Inf
  } else {
    exponent = int(amax >> 23) - 127;
    mantissa = amax & 0x7fffff;
  }
  const int carry = int((mantissa + rule_increment(numbers)) >> 23);
  const int s = exponent + carry - emax;
  return s < low ? low : s > 127 ? 127 : s;
}

float tensor_scale_of(uint32_t amax, const Numbers& numbers) {
  if (amax == 0) return 1;
  const float t = float_of(amax) / (numbers.scale_format().max * numbers.element_format().max);
  return larger(t, 0x1p-149f);
}

uint8_t tensor_scaled_code(uint32_t amax, float t, const Numbers& numbers) {
  if (amax == 0) return numbers.zero_scale;
  const Format& format = numbers.scale_format();
  const float ratio = float_of(amax) / numbers.element_format().max / t;
  const uint8_t code = encode_magnitude(smaller(ratio, format.max), format);
  return code < numbers.least_scale ? numbers.least_scale : code;
}

Affine affine_of(uint32_t negative, uint32_t positive, const Numbers& numbers, TensorType type) {
  const Format& element = numbers.element_format();
  const Format& format = numbers.scale_format();
  const bool fixed = element.kind == Kind::kFixed;
  const float qmin = fixed ? float(numbers.quant_min) : -element.max;
  const float qmax = fixed ? float(numbers.quant_max) : element.max;
  const float low = -float_of(negative);
  const float high = float_of(positive);
  float scale = 0;
  switch (numbers.rule) {
    case Rule::kSymmetric:
      scale = larger(-low, high) / ((qmax - qmin) / 2);
      break;
    case Rule::kNoClip:
      scale = larger(low / qmin, high / qmax);
      break;
    default:
      scale = (high * 0.5f - low * 0.5f) / ((qmax - qmin) / 2);
  }
  // The least scale: the smallest normal of the scale format; in torchao's way, of the tensor's type too.
  scale = larger(scale, power_of_two(format.emin));
  const int tensor_format[] = {k_f32, k_bf16, k_f16};
  if (numbers.reciprocal) {
    scale = larger(scale, power_of_two(kFormats[tensor_format[int(type)]].emin));
  }
  if (numbers.scale == k_bf16) scale = to_bfloat_and_back(scale);
  if (numbers.scale == k_f16) scale = to_half_and_back(scale);
  scale = smaller(scale, format.max);
  Affine result{scale, 0};
  if (numbers.rule == Rule::kAsymmetric) {
    const float zero = qmin - std::nearbyint(low / scale);
    result.zero_point = int32_t(smaller(larger(zero, qmin), qmax));
  } else if (numbers.zero_point) {
    const int sum = numbers.quant_min + numbers.quant_max + 1;
    result.zero_point = sum >= 0 ? sum / 2 : -((1 - sum) / 2);  // rounds down
  }
  return result;
}

float decode_scale(uint8_t code, const Format& format) {
  if (format.kind == Kind::kExponent) {
    return code == kE8m0Nan ? float_of(0x7fc00000) : power_of_two(code - 127);
  }
  const int mantissa_ones = (1 << format.mantissa_bits) - 1;
  const int exponent_ones = (1 << format.exponent_bits) - 1;
  const int exponent = (code >> format.mantissa_bits) & exponent_ones;
  const int mantissa = code & mantissa_ones;
  if (format.specials == Specials::kNan && exponent == exponent_ones && mantissa == mantissa_ones) {
    return float_of(0x7fc00000);
  }
  const int significand = mantissa + (exponent > 0 ? 1 << format.mantissa_bits : 0);
  const int power = (exponent > 0 ? exponent : 1) - format.bias - format.mantissa_bits;
  const float value = std::ldexp(float(significand), power);
  return code >> (format.bits - 1) ? -value : value;
}

float to_half_and_back(float value) { return half_to_float(float_to_half(value)); }
float to_bfloat_and_back(float value) { return bfloat_to_float(float_to_bfloat(value)); }

}  // namespace bs
