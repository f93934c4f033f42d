// Walks a tensor with the kernels: extremes, parameters, encoding, decoding. No Python, no
// allocation of the size of the tensor, no thread of its own.
#pragma once

#include <cstdint>

#include "geometry.h"
#include "kernels.h"
#include "numbers.h"
#include "parallel.h"

namespace bs {

// What decodes a tensor: an entry a block in row-major order, in stored form.
struct StoredParams {
  void* scales = nullptr;  // bytes (e8m0, fp8), float32, bfloat16 or float16 by scale format
  int32_t* zero_points = nullptr;  // null where the numbers have none
  float tensor_scale = 1;
};

enum class Scales : uint8_t { kGiven, kChosen };

struct Job {
  Numbers numbers;
  Geometry geometry;
  const void* x = nullptr;  // elements of x_type; codes when decoding
  TensorType x_type = TensorType::kF32;
  void* y = nullptr;  // elements of y_type; codes when encoding
  TensorType y_type = TensorType::kF32;
  Scales scales = Scales::kChosen;
  StoredParams params;  // read if given; written if chosen and not null
  bool tensor_scale_given = false;
  uint64_t seed = 0;
};

void fake_quantize(Job job, const Host& host);
// Returns the tensor scale that was used.
float quantize(Job job, const Host& host);
// Parameters alone; y is not used.
float choose_params(Job job, const Host& host);
void dequantize(Job job, const Host& host);

}  // namespace bs
