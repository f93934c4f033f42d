// A weight in the layout of the products (products.h): made once from its canonical stored form,
// immutable afterwards. The same for every instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "numbers.h"
#include "parallel.h"
#include "plan.h"
#include "products.h"

namespace bs {

// How the stored codes lie: as W [N, K], packed along K, or as Wᵀ [K, N], packed along N.
enum class Storage : uint8_t { kRowsOfN, kRowsOfK };

struct WeightForm {
  Numbers numbers;
  Storage storage;
  int64_t n, k;
  // Of the scales: along K a multiple of 32 (16 or 32 with scales of fp8_e4m3), or 0, all of it;
  // along N anything, 0 is all of it.
  int64_t block_k, block_n;
};

class PackedWeight {
 public:
  // `params` as for Plan::dequantize; scales in the order of the storage's dimensions. Refuses what
  // there are no kernels for: elements of more than 8 bits, blocks that no run of 32 covers.
  PackedWeight(const WeightForm& form, const Memory& codes, const Parameters& params,
               const Host& host);

  const WeightView& view() const { return view_; }
  const Numbers& numbers() const { return numbers_; }
  int64_t n() const { return int64_t(view_.n); }
  int64_t k() const { return int64_t(view_.k); }
  size_t bytes() const;

 private:
  friend class Packer;

  Numbers numbers_;
  WeightView view_{};
  std::vector<uint8_t> memory_;  // codes, scales, zero points; from a multiple of 64 bytes on
  std::vector<float> columns_;   // column_scale, column_sum
};

// The code of a format's elements; those of more than 8 bits are refused.
Code code_of(const Numbers& numbers);

// The value of a stored scale.
float stored_scale(const Numbers& numbers, const uint8_t* scales, size_t index);

}  // namespace bs
