// The products of linear layers: compiled once per instruction set, chosen with the codec's
// kernels.
//
// A weight lies in groups of 16 columns (rows of W) and blocks of 32 elements of K (see
// packed_weight.h); a kernel walks groups and tiles of rows of x. Everything that is not a product,
// reading x and finishing y, is linear*.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numbers.h"

namespace bs {

inline constexpr size_t kLanes = 16;                // columns of a group
inline constexpr size_t kBlockOfK = 32;             // elements of a block
inline constexpr size_t kMostColumns = 4 * kLanes;  // of the results of one step

// How codes lie in a weight, and what they mean. Integers are stored from 0 on: the code less the
// least code of its format.
enum class Code : uint8_t { kFp4, kInt4, kE2m3, kE3m2, kE4m3, kE5m2, kInt8 };

// Of a block of 32; `kColumn`: only one a column, which WeightView::column_scale holds.
enum class ScaleKind : uint8_t { kE8m0, kE4m3, kF32, kBf16, kF16, kColumn };

struct WeightView {
  Code code;
  ScaleKind scale;
  bool zeros;            // a zero point, as a byte, beside each scale
  uint8_t exponent_low;  // E8M0: range of the scales of blocks that are not all 0
  uint8_t exponent_high;
  size_t n, k;
  size_t groups;          // of 16 columns, an even number
  size_t blocks;          // of 32 elements
  size_t run;             // blocks that share a scale; a group of 16 columns has ceil(blocks / run)
  const uint8_t* codes;   // [groups][blocks][code_bytes(code)]
  const uint8_t* scales;  // [groups][runs][scale_bytes(scale)]
  const uint8_t* zero_points;  // [groups][runs][16]
  const float* column_scale;   // [groups · 16]: 1, a factor, or NaN where the column is NaN
  const float* column_sum;     // [groups · 16]: Σ over K of W, without column_scale
};

// Bytes of a group's block of codes, and of a group's scales of one run.
constexpr size_t code_bytes(Code code) {
  return code == Code::kFp4 || code == Code::kInt4    ? 256
         : code == Code::kE2m3 || code == Code::kE3m2 ? 384
                                                      : 512;
}
constexpr size_t scale_bytes(ScaleKind scale) {
  return scale == ScaleKind::kE8m0     ? 16
         : scale == ScaleKind::kE4m3   ? 32  // two halves of a block
         : scale == ScaleKind::kF32    ? 64
         : scale == ScaleKind::kColumn ? 0
                                       : 32;
}
constexpr bool is_integer(Code code) { return code == Code::kInt4 || code == Code::kInt8; }

// What x is to a kernel. Rows of blocks of 32 elements of K; the last one is filled up with zeros.
enum class Operand : uint8_t {
  // The canonical dot product. A block: 32 int8, then what makes results floats (magic.h): two
  // int32.
  kExact,
  // The same of numbers beyond int8. A block: 32 int16 in the order of kPairs, then one int32.
  kExactWide,
  // int8 whose scale is the row's. A block: 32 int8, then an int32: on the first block of a run −Σx
  // of the run, times the offset of the weight's codes if it has no zero points; 0 on the others.
  kInt8,
  kReal,   // float32
  kPairs,  // bfloat16, every four elements in the order 0, 2, 1, 3
  kOperands
};

constexpr size_t operand_bytes(Operand operand) {
  switch (operand) {
    case Operand::kExact:
      return 40;
    case Operand::kExactWide:
      return 68;
    case Operand::kInt8:
      return 36;
    case Operand::kReal:
      return 128;
    default:
      return 64;
  }
}

// p = n · 2^e without a product. Integers n are summed on top of the bits of 1.5 · 2^(23 + e),
// whose last place counts steps of 2^e; less that number the sum is p, exactly, as long as |n| <
// 2^22. The bits are put together of a part of the weight, the byte of its scale in the place of
// the exponent, and a part of x: this, for its scale byte and the fraction bits of both operands.
constexpr int kExactTop = 22;
constexpr int32_t magic_of_x(int scale_byte, int fraction_bits) {
  return int32_t(uint32_t(150 - 2 * 127 + scale_byte - fraction_bits) * (1u << 23) + 0x400000u);
}
// The exponents of all these must be those of normal floats.
constexpr bool magic_fits(int w_low, int w_high, int x_low, int x_high, int fraction_bits) {
  const int base = 150 - 2 * 127 - fraction_bits;
  return base + w_low + x_low >= 1 && base + w_high + x_high <= 254;
}

struct XView {
  const uint8_t* rows;
  size_t stride;  // bytes from row to row
};

enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

// What becomes of the sums c of row m and column n, and where they go:
// y = activation((c − zero[m] · column_sum[n]) · column_scale[n] · scale[m] · unit + bias[n])
struct Finish {
  void* y;
  TensorType type;
  size_t stride;      // bytes from row to row
  const float* bias;  // null: none
  Activation activation;
  float unit;
  const float* row_scale;  // null: 1
  const float* row_zero;   // null: 0
};

struct Part {
  size_t group, groups;  // an even number of groups
  size_t row, rows;
};

// Sums of a row are kMostColumns apart in scratch, which is scratch_bytes(rows), aligned to 64
// bytes.
using Product = void (*)(const WeightView&, const XView&, const Part&, uint8_t* scratch,
                         const Finish&);
inline constexpr size_t kPanelBytes = 72 << 10;
constexpr size_t scratch_bytes(size_t rows) {
  return rows * kMostColumns * sizeof(float) + kPanelBytes;
}

// A row of x as integers, to become the records of Operand. `sums`: what is beside the integers.
struct IntegerRow {
  const uint8_t* codes;  // a byte each, as stored but not packed
  Code code;
  bool is_unsigned;  // of kInt8
  size_t k;
};

struct Products {
  // null where this set has none for them.
  Product (*find)(Code, bool zeros, Operand);
  // kExact, kExactWide: scale bytes are to be in range. `w`: of the weight.
  void (*exact_row)(const IntegerRow&, const uint8_t* scales, Code w, int fraction_bits, Operand,
                    uint8_t* to);
  // kInt8.
  void (*int8_row)(const IntegerRow&, const WeightView& w, uint8_t* to);
  // kReal and kPairs, of k elements.
  void (*real_row)(const void* x, TensorType, size_t k, Operand, uint8_t* to);
  // One row's sums, without Products.
  void (*finish)(const WeightView&, const Finish&, size_t row, size_t column, size_t columns,
                 const float* c);
};

// Those that go with kernels().
const Products* products();

}  // namespace bs
