// The parameters of a run of blocks, side by side as the kernels want them, and their stored form.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine.h"
#include "kernels.h"

namespace bs {

// Extremes of blocks, as bits of magnitudes. `negative` is used by two-sided rules only.
struct Extremes {
  uint32_t* amax;      // greatest magnitude; or the greatest positive value
  uint32_t* negative;  // greatest magnitude below 0
};

inline bool two_sided(const Numbers& n) {
  return (n.family == Family::kAffine && n.rule != Rule::kSymmetric) || rounds_up_one_sided(n);
}

// Room for `capacity` blocks.
class ParamBuffer {
 public:
  ParamBuffer(const Numbers& numbers, size_t capacity);

  BlockParams params() { return params_; }
  BlockParams params_from(size_t block) const;
  Extremes extremes() { return extremes_; }
  int32_t* exponents() { return exponents_; }   // scale exponents of MX
  double* candidates() { return candidates_; }  // three a block: scales of the mse rule
  double* sums() { return sums_; }
  uint8_t* codes() { return codes_; }
  void clear_extremes(size_t blocks);

  // By what the elements of a block are multiplied beforehand, and their results divided: 1, or
  // 2^16 where 1 / scale would overflow float32 (only where the scale is not clamped to a byte).
  float* lift() { return lift_; }
  bool lifted = false;

  // A value of this run may overflow float32 when it is scaled: outputs need saturating.
  bool overflows = false;

 private:
  static constexpr size_t kArrays = 10;

  size_t n_;
  std::vector<uint32_t> memory_;
  BlockParams params_{};
  Extremes extremes_{};
  int32_t* exponents_ = nullptr;
  double* candidates_ = nullptr;
  double* sums_ = nullptr;
  float* lift_ = nullptr;
  uint8_t* codes_ = nullptr;
};

// What to know of a job to turn extremes or stored scales into parameters.
struct Maker {
  const Numbers& numbers;
  StoredParams stored;  // its pointers may be null: nothing is written
  TensorType x_type;
  const Kernels& kernels;
};

// Blocks [0, n) of `buffer` from their extremes; stored form written from `at` on.
void params_from_extremes(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at);
// Blocks [0, n) of `buffer` from the scale exponents of MX that stand in it.
void params_from_exponents(const Maker& maker, ParamBuffer& buffer, size_t n);
// Blocks [0, n) of `buffer` from stored form, from `at` on.
void params_from_stored(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at);
// The three candidates of the mse rule from the extremes, and the choice among them.
void mse_candidates(const Maker& maker, ParamBuffer& buffer, size_t n);
void mse_choose(const Maker& maker, ParamBuffer& buffer, size_t n, int64_t at);

// Tensor scale from the greatest finite magnitude.
float tensor_scale_of(uint32_t amax_bits, const Numbers& numbers);

// Bytes of one stored scale.
size_t scale_size(const Numbers& numbers);

}  // namespace bs
