// What dialects do at the ends of the range, beside the kernels: rare, so plain loops.
#pragma once

#include <cstddef>

#include "numbers.h"

namespace bs {

inline void copy_nonfinite(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = (bits_of(x[i]) & kMagnitude) >= kInfBits ? x[i] : y[i];
}

inline void saturate(float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    y[i] = y[i] > kFloatMax ? kFloatMax : y[i] < -kFloatMax ? -kFloatMax : y[i];
  }
}

// What rounds to beyond the output's range, as the ordinary conversion does: `store` would
// saturate.
inline void overflow_to_infinity(float* y, size_t n, TensorType type) {
  const float least[] = {float_of(kInfBits), 0x1.ffp127f, 65520.0f};
  const float limit = least[int(type)];
  const float infinity = float_of(kInfBits);
  for (size_t i = 0; i < n; ++i) {
    y[i] = y[i] >= limit ? infinity : y[i] <= -limit ? -infinity : y[i];
  }
}

}  // namespace bs
