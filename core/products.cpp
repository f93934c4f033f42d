// The products of one instruction set: compiled several times, with BS_ISA_NAMESPACE naming the
// set.
//
// As in kernels.cpp everything is static or in that namespace.
#include "products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "half.h"
#include "numbers.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own AVX-512 headers trip it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace bs::BS_ISA_NAMESPACE {

namespace {

#include "product_values.h"

// Tiles are arrays of registers: their loops are to be unrolled, all of them. Without registers of
// ours the compiler decides.
// Nor under a sanitizer, which watches every element of them and would compile for hours.
#if (defined(__AVX512F__) || defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__clang__)
#define BS_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define BS_UNROLL _Pragma("GCC unroll 32")
#endif
#endif
#ifndef BS_UNROLL
#define BS_UNROLL
#endif

// kDecodesInPlace: whether codes become vectors fast enough to do so again for every tile.
#if defined(__AVX512F__)
inline constexpr bool kDecodesInPlace = true;
inline constexpr size_t kMostRows = 6;
#include "product_avx512.h"
#include "product_decode_avx512.h"
#else
inline constexpr bool kDecodesInPlace = false;
#if defined(__AVX2__)
inline constexpr size_t kMostRows = 1;
#include "product_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
inline constexpr size_t kMostRows = 2;
#include "product_neon.h"
#else
inline constexpr size_t kMostRows = 1;
#include "product_plain.h"
#endif
#include "product_decode.h"
#endif
#include "product_tile.h"
// On its tiles.
#include "product_scaled.h"
// x and y beside them.
#include "product_finish.h"
#include "product_rows.h"
// All of it together.
#include "product_walk.h"

Product exact(Code code) {
  switch (code) {
    case Code::kFp4:
      return product<Exact<Code::kFp4>>;
    case Code::kE2m3:
      return product<Exact<Code::kE2m3>>;
    case Code::kInt8:
      return product<Exact<Code::kInt8>>;
    default:
      return nullptr;
  }
}

Product exact_wide(Code code) {
  switch (code) {
    case Code::kFp4:
      return product<ExactWide<Code::kFp4>>;
    case Code::kE2m3:
      return product<ExactWide<Code::kE2m3>>;
    case Code::kE3m2:
      return product<ExactWide<Code::kE3m2>>;
    case Code::kInt8:
      return product<ExactWide<Code::kInt8>>;
    default:
      return nullptr;
  }
}

Product scaled(Code code, bool zeros) {
  switch (code) {
    case Code::kFp4:
      return product<Scaled<Code::kFp4, false>>;
    case Code::kE2m3:
      return product<Scaled<Code::kE2m3, false>>;
    case Code::kInt4:
      return zeros ? product<Scaled<Code::kInt4, true>> : product<Scaled<Code::kInt4, false>>;
    case Code::kInt8:
      return zeros ? product<Scaled<Code::kInt8, true>> : product<Scaled<Code::kInt8, false>>;
    default:
      return nullptr;
  }
}

template <class By>
Product real(Code code, bool zeros) {
  switch (code) {
    case Code::kFp4:
      return product<Real<Code::kFp4, false, By>>;
    case Code::kE2m3:
      return product<Real<Code::kE2m3, false, By>>;
    case Code::kE3m2:
      return product<Real<Code::kE3m2, false, By>>;
    case Code::kE4m3:
      return product<Real<Code::kE4m3, false, By>>;
    case Code::kE5m2:
      return product<Real<Code::kE5m2, false, By>>;
    case Code::kInt4:
      return zeros ? product<Real<Code::kInt4, true, By>> : product<Real<Code::kInt4, false, By>>;
    case Code::kInt8:
      return zeros ? product<Real<Code::kInt8, true, By>> : product<Real<Code::kInt8, false, By>>;
  }
  return nullptr;
}

Product find(Code code, bool zeros, Operand operand) {
  switch (operand) {
    case Operand::kExact:
      return exact(code);
    case Operand::kExactWide:
      return exact_wide(code);
    case Operand::kInt8:
      return scaled(code, zeros);
    case Operand::kReal:
      return real<ByReal>(code, zeros);
    case Operand::kPairs:
#if defined(__AVX512BF16__)
      return real<ByPairs>(code, zeros);
#else
      return nullptr;
#endif
    default:
      return nullptr;
  }
}

constexpr Products kProducts = {find, exact_row, int8_row, real_row, finish_row};

}  // namespace

const Products& product_table() { return kProducts; }

}  // namespace bs::BS_ISA_NAMESPACE
