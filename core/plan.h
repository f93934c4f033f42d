// The front of the core: numbers by name, a layout, and calls that check every size before they
// touch memory. Errors are ArgumentError: the argument, its value and what is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine.h"
#include "numbers.h"
#include "parallel.h"

namespace bs {

struct NumberNames {
  std::string element, scale, family, rule, rounding, nonfinite;
  bool zero_point = false;
  int quant_min = 0;
  int quant_max = 0;
  bool saturates = true;
  bool reciprocal = false;
  bool nearly_half = false;
  bool has_codes = true;
  bool clamps = true;
  bool flushes = false;
  int least_scale = 1;
  int zero_scale = 0;
  int int_low = 0;
  int sub_block = 0;
  int sub_shift = 0;
  bool zero_of_zero = true;
  bool zero_of_underflow = true;
  bool zero_of_tiny = true;
};

Numbers numbers_of(const NumberNames& names);

struct Memory {
  unsigned char* data;
  size_t bytes;
};

struct Tensor {
  Memory memory;
  int type;                      // TensorType
  std::vector<int64_t> strides;  // in elements; empty: contiguous
};

struct Parameters {
  Memory scales;
  Memory zero_points;
  float tensor_scale;
  bool tensor_scale_given;
  bool given;
};

class Plan {
 public:
  // shape and block as in Layout: 0 is a whole dimension.
  Plan(const Numbers& numbers, std::vector<int64_t> shape, std::vector<int64_t> block);

  int64_t size() const { return size_; }
  int64_t scale_count() const { return scale_count_; }
  size_t scale_bytes() const;
  size_t code_bytes() const { return code_bytes_; }

  // In place (x and y the same memory and strides) is allowed; another overlap is an error.
  void fake_quantize(const Tensor& x, const Tensor& y, const Parameters& params, uint64_t seed,
                     const Host& host) const;
  // Both return the tensor scale that was used.
  float quantize(const Tensor& x, const Memory& codes, const Parameters& params, uint64_t seed,
                 const Host& host) const;
  float choose_params(const Tensor& x, const Parameters& params, const Host& host) const;
  void dequantize(const Memory& codes, const Tensor& y, const Parameters& params,
                  const Host& host) const;

  // Refuses codes and given parameters that dequantize would refuse.
  void check_stored(const Memory& codes, const Parameters& params) const;
  void check_params(const Parameters& given) const { job(given, true); }

 private:
  Job job(const Parameters& params, bool need_scales) const;

  Numbers numbers_;
  std::vector<int64_t> shape_, block_;
  int64_t size_ = 1;
  int64_t scale_count_ = 1;
  size_t code_bytes_ = 0;
  int64_t row_bits_ = 0;  // of a packed row, its padding included
  Geometry dense_;        // of contiguous tensors, merged as far as it goes
  Geometry coded_;        // contiguous elements on one side, codes on the other
};

}  // namespace bs
