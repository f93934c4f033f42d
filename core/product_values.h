// What codes mean, one by one: what tables are made of. Included once per instruction set, inside
// its namespace.

// A float of few bits, without its sign, times 2^m: an integer.
static constexpr int magnitude(int code, int mantissa) {
  const int field = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
  return field == 0 ? fraction : ((1 << mantissa) + fraction) << (field - 1);
}
static constexpr int signed_magnitude(int code, int bits, int mantissa) {
  const int m = magnitude(code & ((1 << (bits - 1)) - 1), mantissa);
  return (code >> (bits - 1)) & 1 ? -m : m;
}
static constexpr int fp4_integer(int code) { return signed_magnitude(code, 4, 1); }   // value · 2
static constexpr int e2m3_integer(int code) { return signed_magnitude(code, 6, 3); }  // value · 8
static constexpr int e3m2_integer(int code) { return signed_magnitude(code, 6, 2); }  // value · 16

static constexpr float float_value(Code code, int at) {
  const int mantissa = code == Code::kE4m3 ? 3 : 2;
  const int bits = at & 127, field = bits >> mantissa;
  float value = 0;
  switch (code) {
    case Code::kFp4:
      return float(fp4_integer(at & 15)) * 0.5f;
    case Code::kE2m3:
      return float(e2m3_integer(at)) * 0.125f;
    case Code::kE3m2:
      return float(e3m2_integer(at)) * 0.0625f;
    default:
      break;
  }
  if (field == 0) {
    value = float(bits) * (mantissa == 3 ? 0x1p-9f : 0x1p-16f);
  } else if (mantissa == 2 && field == 31) {
    value = std::bit_cast<float>(bits == 124 ? 0x7f800000u : 0x7fc00000u);
  } else {
    value = std::bit_cast<float>((uint32_t(bits) << (23 - mantissa)) +
                                 ((mantissa == 3 ? 120u : 112u) << 23));
  }
  return at & 128 ? -value : value;
}

// What makes integers of codes unsigned.
static constexpr int code_offset(Code code) {
  switch (code) {
    case Code::kFp4:
      return 12;
    case Code::kE2m3:
      return 60;
    case Code::kInt4:
      return 8;
    default:
      return 128;
  }
}
