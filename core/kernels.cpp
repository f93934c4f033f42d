// The kernels of one instruction set: compiled several times, with BS_ISA_NAMESPACE naming the set.
//
// Everything is static or in that namespace, and no inline function of another header with external
// linkage is used in a hot loop: the linker would keep one copy for all sets.
#include "kernels.h"

#include <cmath>
#include <cstring>

#include "half.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
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


template <class E, class S>
struct Fake {
  static FakeKernel of(const Numbers& numbers) {
    if (rounds_plainly(numbers)) return fake<E, S, HalfEven>;
    if (numbers.rounding == Rounding::kStochastic) return fake<E, S, ByNoise>;
    return fake<E, S, ByTies>;
  }
};
template <class E, class S>
struct Code {
  static CodeKernel of(const Numbers& numbers) {
    if (rounds_plainly(numbers)) return code<E, S, HalfEven>;
    if (numbers.rounding == Rounding::kStochastic) return code<E, S, ByNoise>;
    return code<E, S, ByTies>;
  }
};

// Of the fused kernels only those with block scales exist.
template <class E>
FusedFakeKernel fused_fake_of(const Numbers& numbers) {
  if (rounds_plainly(numbers)) return fused_fake<E, HalfEven>;
  if (numbers.rounding == Rounding::kStochastic) return fused_fake<E, ByNoise>;
  return fused_fake<E, ByTies>;
}
template <class E>
FusedCodeKernel fused_code_of(const Numbers& numbers) {
  if (rounds_plainly(numbers)) return fused_code<E, HalfEven>;
  if (numbers.rounding == Rounding::kStochastic) return fused_code<E, ByNoise>;
  return fused_code<E, ByTies>;
}

template <template <class, class> class Table, class E>
auto by_scaling(const Numbers& numbers) {
  return multiplies(numbers) ? Table<E, Multiply>::of(numbers)
                             : Table<E, Divide>::of(numbers);
}

template <template <class, class> class Table>
auto by_element(const Numbers& numbers) {
  switch (numbers.element) {
    case k_fp8_e4m3:
      return by_scaling<Table, FloatElement<3, -6>>(numbers);
    case k_fp8_e5m2:
      return by_scaling<Table, FloatElement<2, -14>>(numbers);
    case k_fp6_e3m2:
      return by_scaling<Table, FloatElement<2, -2>>(numbers);
    case k_fp6_e2m3:
      return by_scaling<Table, FloatElement<3, 0>>(numbers);
    case k_fp4_e2m1:
      return by_scaling<Table, FloatElement<1, 0>>(numbers);
    case k_mxint8:
      return Table<FixedElement<6>, Multiply>::of(numbers);
    default:
      return by_scaling<Table, FixedElement<0>>(numbers);
  }
}

#define BS_IS(id, m, e) \
  static_assert(kFormats[k_##id].mantissa_bits == (m) && kFormats[k_##id].emin == (e))
BS_IS(fp8_e4m3, 3, -6);
BS_IS(fp8_e5m2, 2, -14);
BS_IS(fp6_e3m2, 2, -2);
BS_IS(fp6_e2m3, 3, 0);
BS_IS(fp4_e2m1, 1, 0);
BS_IS(mxint8, 6, 0);
#undef BS_IS

FakeKernel fake_kernel(const Numbers& numbers) { return by_element<Fake>(numbers); }
CodeKernel code_kernel(const Numbers& numbers) { return by_element<Code>(numbers); }

template <class Choose>
auto by_mx_element(const Numbers& numbers, Choose choose) {
  switch (numbers.element) {
    case k_fp8_e4m3:
      return choose(FloatElement<3, -6>{});
    case k_fp8_e5m2:
      return choose(FloatElement<2, -14>{});
    case k_fp6_e3m2:
      return choose(FloatElement<2, -2>{});
    case k_fp6_e2m3:
      return choose(FloatElement<3, 0>{});
    case k_fp4_e2m1:
      return choose(FloatElement<1, 0>{});
    default:
      return choose(FixedElement<6>{});
  }
}

bool can_fuse(const Numbers& numbers) {
  return numbers.family == Family::kMx && numbers.rule != Rule::kMse &&
         numbers.nonfinite == Nonfinite::kBlock && numbers.saturates;
}

FusedFakeKernel fused_fake_kernel(const Numbers& numbers) {
  if (!can_fuse(numbers)) return nullptr;
  return by_mx_element(numbers, [&](auto e) { return fused_fake_of<decltype(e)>(numbers); });
}
FusedCodeKernel fused_code_kernel(const Numbers& numbers) {
  if (!can_fuse(numbers)) return nullptr;
  return by_mx_element(numbers, [&](auto e) { return fused_code_of<decltype(e)>(numbers); });
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
    decode_kernel,
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
