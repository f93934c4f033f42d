// The arithmetic of the core needs subnormals and rounding half to even, whatever the caller has
// set (torch.set_flush_denormal, say). One object for the length of a task.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bs {

class FloatEnvironment {
 public:
#if defined(__x86_64__) || defined(_M_X64)
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }
#elif defined(__aarch64__) && defined(__GNUC__)
  FloatEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FloatEnvironment() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
  FloatEnvironment() : saved_(0) {}
  ~FloatEnvironment() = default;
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__) || defined(_M_X64)
  unsigned saved_;
#else
  uint64_t saved_;
#endif
};

}  // namespace bs
