#include "linear_exact.h"

#include <cmath>

#include "formats.h"

namespace bs {

namespace {

int code_at(Code code, const uint8_t* block, size_t lane, size_t k) {
  const size_t quad = k / 4, at = lane * 4 + k % 4;
  if (code_bytes(code) == 256) return block[64 * (quad & 3) + at] >> (quad < 4 ? 0 : 4) & 15;
  if (code_bytes(code) == 512) return block[64 * quad + at];
  const uint8_t* half = block + 192 * (quad / 4) + at;
  if (quad % 4 < 3) return half[64 * (quad % 4)] & 63;
  return half[0] >> 6 | half[64] >> 6 << 2 | half[128] >> 6 << 4;
}

}  // namespace

int code_integer(Code code, int at) {
  if (is_integer(code)) return int8_t(uint8_t(at));
  const int mantissa = code == Code::kFp4 ? 1 : code == Code::kE2m3 ? 3 : 2;
  const int top = code == Code::kFp4 ? 8 : 32;
  const int bits = at & (top - 1), field = bits >> mantissa;
  const int fraction = bits & ((1 << mantissa) - 1);
  const int m = field == 0 ? fraction : ((1 << mantissa) + fraction) << (field - 1);
  return (at & top) != 0 ? -m : m;
}

int fraction_bits(Code code) {
  switch (code) {
    case Code::kFp4:
      return 1;
    case Code::kE2m3:
      return 3;
    case Code::kE3m2:
      return 4;
    default:
      return kFormats[k_mxint8].mantissa_bits;
  }
}

void block_integers(const WeightView& w, size_t group, size_t block,
                    int16_t (&to)[kLanes][kBlockOfK]) {
  const uint8_t* codes = w.codes + (group * w.blocks + block) * code_bytes(w.code);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (size_t k = 0; k < kBlockOfK; ++k) {
      to[lane][k] =
          int16_t(is_integer(w.code) ? code_at(w.code, codes, lane, k) - 128
                                     : code_integer(w.code, code_at(w.code, codes, lane, k)));
    }
  }
}

void exact_sums(const WeightView& w, size_t group, const int16_t* x, const uint8_t* x_scales,
                int fraction, float* to) {
  for (size_t lane = 0; lane < kLanes; ++lane) to[lane] = 0;
  for (size_t b = 0; b < w.blocks; ++b) {
    int16_t integers[kLanes][kBlockOfK];
    block_integers(w, group, b, integers);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      int32_t n = 0;
      for (size_t k = 0; k < kBlockOfK; ++k) n += integers[lane][k] * x[b * kBlockOfK + k];
      const int scale = w.scales[(group * w.blocks + b) * kLanes + lane];
      to[lane] += float(std::ldexp(double(n), scale + x_scales[b] - fraction - 2 * 127));
    }
  }
}

}  // namespace bs
