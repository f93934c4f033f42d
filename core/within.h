// Whether integers, or bit patterns of positive floats, lie in a range.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bs {

// As unsigned differences: negative bounds of signed integers work, and the bit patterns of
// positive floats are in order.
template <class Unsigned>
constexpr bool is_within(Unsigned value, Unsigned low, Unsigned high) {
  return Unsigned(value - low) <= Unsigned(high - low);
}

template <class Unsigned>
bool all_within(const void* values, size_t count, Unsigned low, Unsigned high) {
  const auto* all = static_cast<const Unsigned*>(values);
  bool beyond = false;
  for (size_t i = 0; i < count; ++i) beyond |= !is_within(all[i], low, high);
  return !beyond;
}

}  // namespace bs
