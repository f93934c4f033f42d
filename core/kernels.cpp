// The kernels of one instruction set: compiled several times, with BS_ISA_NAMESPACE naming the set.
//
// Everything is static or in that namespace, and no inline function of another header with external
// linkage is used in a hot loop: the linker would keep one copy for all sets.
#include "kernels.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "half.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own AVX-512 headers trip it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace bs::BS_ISA_NAMESPACE {

namespace {

#include "kernel_memory.h"
#include "kernel_round.h"
// These need the elements of kernel_round.h.
#include "kernel_decode.h"
#include "kernel_error.h"
// This the values of kernel_decode.h.
#include "kernel_params.h"
// And these all of the above.
#include "kernel_encode.h"
#include "kernel_fused.h"
#include "kernel_lut.h"
// These fall back on kernel_fused.h.
#include "kernel_grid.h"
#include "kernel_rows.h"
// On the grids of kernel_rows.h.
#include "kernel_columns.h"

// The kernel of a rounding: `choose` is called with a value of its type.
template <class Choose>
auto by_rounding(const Numbers& numbers, Choose choose) {
  if (rounds_plainly(numbers)) return choose(HalfEven{});
  if (numbers.rounding == Rounding::kStochastic) return choose(ByNoise{});
  return choose(ByTies{});
}

template <class Choose>
auto by_element(const Numbers& numbers, Choose choose) {
  switch (numbers.element) {
    case k_fp8_e4m3:
      return choose(FloatElement<k_fp8_e4m3>{});
    case k_fp8_e5m2:
      return choose(FloatElement<k_fp8_e5m2>{});
    case k_fp6_e3m2:
      return choose(FloatElement<k_fp6_e3m2>{});
    case k_fp6_e2m3:
      return choose(FloatElement<k_fp6_e2m3>{});
    case k_fp4_e2m1:
      return choose(FloatElement<k_fp4_e2m1>{});
    case k_mxint8:
      return choose(FixedElement<kFormats[k_mxint8].mantissa_bits>{});
    default:
      return choose(FixedElement<0>{});
  }
}

FakeKernel fake_kernel(const Numbers& numbers) {
  return by_element(numbers, [&](auto e) {
    return by_rounding(numbers, [&](auto r) -> FakeKernel {
      using E = decltype(e);
      using R = decltype(r);
      return multiplies(numbers) ? fake<E, Multiply, R> : fake<E, Divide, R>;
    });
  });
}

CodeKernel code_kernel(const Numbers& numbers) {
  return by_element(numbers, [&](auto e) {
    return by_rounding(numbers, [&](auto r) -> CodeKernel {
      using E = decltype(e);
      using R = decltype(r);
      return multiplies(numbers) ? code<E, Multiply, R> : code<E, Divide, R>;
    });
  });
}

FusedFakeKernel fused_fake_kernel(const Numbers& numbers) {
  const bool passes = can_fuse_passing(numbers);
  if (!passes && !can_fuse(numbers)) return nullptr;
  return by_element(numbers, [&](auto e) {
    return by_rounding(numbers, [&](auto r) -> FusedFakeKernel {
      using E = decltype(e);
      using R = decltype(r);
      return passes ? fused_passing<E, R> : fused_fake<E, R>;
    });
  });
}

// Codes of these are bytes.
bool has_bytes(const Numbers& numbers) { return numbers.element_format().bits <= 8; }

FusedCodeKernel fused_code_kernel(const Numbers& numbers) {
  if (!can_fuse(numbers) || !has_bytes(numbers)) return nullptr;
  return by_element(numbers, [&](auto e) {
    return by_rounding(
        numbers, [&](auto r) -> FusedCodeKernel { return fused_code<decltype(e), decltype(r)>; });
  });
}

RowFakeKernel row_fake_kernel(const Numbers& numbers, TensorType type) {
  const bool passes = has_passing_grid(numbers);
  if (!passes && !has_grid(numbers)) return nullptr;
  return by_element(numbers, [&](auto e) {
    return passes ? passing_row_of<decltype(e)>(type) : row_fake_of<decltype(e)>(type);
  });
}

RowCodeKernel row_code_kernel(const Numbers& numbers, TensorType type) {
  if (!has_grid(numbers) || !has_bytes(numbers)) return nullptr;
  return by_element(numbers, [&](auto e) { return row_code_of<decltype(e)>(type); });
}

ColumnKernels column_kernels(const Numbers& numbers) {
  const bool passes = has_passing_grid(numbers);
  if (!passes && !has_grid(numbers)) return {};
  return by_element(numbers, [&](auto e) { return column_kernels_of<decltype(e)>(passes); });
}

#define BS_STRING_(x) #x
#define BS_STRING(x) BS_STRING_(x)

constexpr Kernels kTable = {
    BS_STRING(BS_ISA_NAMESPACE),
    {load_f32, load_bf16, load_f16},
    {store_f32, store_bf16, store_f16},
    stream_f32,
    amax,
    extremes,
    errors,
    fake_kernel,
    code_kernel,
    fused_fake_kernel,
    fused_code_kernel,
    row_fake_kernel,
    row_code_kernel,
    column_kernels,
    decode_kernel,
    packed_kernel,
    pack,
    unpack,
    mx_exponents,
    mx_params,
    tensor_scaled_codes,
    tensor_scaled_params,
    affine_scales,
    affine_params,
    stored_scales,
    overflows,
};

}  // namespace

const Kernels& table() { return kTable; }

}  // namespace bs::BS_ISA_NAMESPACE
