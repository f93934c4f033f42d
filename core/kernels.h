// The vector kernels: compiled once per instruction set, chosen at run time.
//
// A kernel works on a piece: up to kPiece consecutive elements of one row, as float32. Where
// elements lie in memory, which block they belong to and who runs them is geometry.h and
// engine.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numbers.h"

namespace bs {

inline constexpr size_t kPiece = 2048;

// How a piece meets its blocks: `kBlocks`, consecutive elements share a block; `kColumns`, every
// element has a block of its own (the blocks run across rows).
enum class Across : uint8_t { kBlocks, kColumns };

// What each block multiplies or divides by, where it saturates and what 0 is. Arrays, a value a
// block.
struct BlockParams {
  float* factor;  // v = x * factor, or x / factor
  float* scale;   // y = r * scale
  float* low;     // on the grid, relative to the zero point
  float* high;
  int32_t* zero;
};

struct Piece {
  const float* x;
  size_t size;
  Across across;
  size_t block;    // elements a block (kBlocks)
  size_t skip;     // elements of the first block that lie before this piece (kBlocks)
  uint64_t index;  // flat index of the first element: stochastic rounding
  uint64_t seed;
  BlockParams params;  // of the first block
};

using FakeKernel = void (*)(const Piece&, const Numbers&, float* out);
// Codes of 8 bits or fewer as bytes, wider ones as 16-bit integers: `wide`.
using CodeKernel = void (*)(const Piece&, const Numbers&, uint8_t* out, uint16_t* wide);
// Choose the scales of whole blocks and use them at once; `scales` gets their bytes.
using FusedFakeKernel = void (*)(const Piece&, const Numbers&, float* out);
using FusedCodeKernel = void (*)(const Piece&, const Numbers&, uint8_t* out, uint8_t* scales);
// The same for rows of blocks as they lie in memory; y may be x. `codes`: a byte each. How many
// blocks are done: before the last one they stop where at least one of the next kRowGroup needs the
// general kernels.
inline constexpr size_t kRowGroup = 16;
using RowFakeKernel = size_t (*)(const void* x, size_t blocks, const Numbers&, void* y);
using RowCodeKernel = size_t (*)(const void* x, size_t blocks, const Numbers&, uint8_t* codes,
                                 uint8_t* scales);
// The same for blocks that run across rows, float32, n columns of one row at a time.
struct ColumnKernels {
  // A row of a tile that comes next: raises the maxima of its columns.
  struct Next {
    const float* x;
    const float* ahead;  // where memory is read after that
    uint32_t* amax;
  };
  // What `row` rounds by: see kernel_on_grid.h.
  struct Grids {
    float *limit, *least, *kept;
  };
  void (*look)(const Next&, size_t n) = nullptr;
  // From maxima, or false: the general kernels are needed.
  bool (*grids)(const Numbers&, const uint32_t* amax, size_t n, Grids to);
  // Rounds a row; and looks at another, if there is one: memory is read while results are made.
  void (*row)(const Numbers&, const float* x, size_t n, const Grids& grids, float* y,
              const Next* next) = nullptr;
  // Two rows whose pairs of elements have scales of their own; null where the numbers have none.
  void (*pair)(const Numbers&, const float* const x[2], size_t n, const Grids& grids,
               float* const y[2]) = nullptr;
};
using DecodeKernel = void (*)(const Piece&, const Numbers&, const uint8_t* codes,
                              const uint16_t* wide, float* out);

// Packed codes straight to values; blocks along the row that start at multiples of 8 codes.
using PackedKernel = void (*)(const Piece&, const Numbers&, const uint8_t* packed, float* out);

struct Kernels {
  const char* name;
  void (*load[3])(const void* from, ptrdiff_t stride, float* to, size_t n);
  // Rounds half to even and saturates. `stream`: past the caches; needs a contiguous float32
  // target.
  void (*store[3])(const float* from, void* to, ptrdiff_t stride, size_t n);
  void (*stream)(const float* from, float* to, size_t n);

  // Greatest magnitude of each block that is at most `limit`, as bits, merged into `amax`.
  void (*amax)(const Piece&, uint32_t limit, uint32_t* amax);
  // Greatest finite x and greatest finite -x of each block, as bits (0 if there is none above 0).
  void (*extremes)(const Piece&, uint32_t* negative, uint32_t* positive);
  // Sums of squared errors of each block at three scales, carried on in ascending order.
  // scales[3 * block + candidate] are the factors 2^s as doubles.
  void (*errors)(const Piece&, const Numbers&, const double* scales, double* sums);

  FakeKernel (*fake)(const Numbers&);
  CodeKernel (*code)(const Numbers&);
  FusedFakeKernel (*fused_fake)(const Numbers&);  // null where the numbers have none
  FusedCodeKernel (*fused_code)(const Numbers&);
  // For blocks of so many elements; null where there is none.
  RowFakeKernel (*row_fake)(const Numbers&, TensorType, size_t length);
  RowCodeKernel (*row_code)(const Numbers&, TensorType, size_t length);
  ColumnKernels (*columns)(const Numbers&);
  DecodeKernel (*decode)(const Numbers&);
  PackedKernel (*decode_packed)(const Numbers&);  // null where the numbers have none

  void (*pack)(const uint8_t* codes, size_t n, int bits, uint8_t* out);
  void (*unpack)(const uint8_t* packed, size_t n, int bits, uint8_t* codes);

  // Parameters of n blocks, see kernel_params.h.
  void (*mx_exponents)(const Numbers&, const uint32_t* amax, size_t n, int32_t* s);
  void (*mx_params)(const Numbers&, const uint32_t* amax, const int32_t* s, size_t n, float* factor,
                    float* scale, float* lift, uint8_t* codes);
  void (*tensor_scaled_codes)(const Numbers&, const uint32_t* amax, size_t n, float t,
                              uint8_t* codes);
  void (*tensor_scaled_params)(const Numbers&, const uint8_t* codes, size_t n, float t,
                               float* factor, float* scale);
  void (*affine_scales)(const Numbers&, const uint32_t* negative, const uint32_t* positive,
                        size_t n, TensorType type, float* scale, int32_t* zero);
  void (*affine_params)(const Numbers&, size_t n, const float* scale, const int32_t* zero,
                        float* factor, float* low, float* high);
  void (*stored_scales)(const Numbers&, const void* from, size_t n, float* scale);
  // Whether a value of these blocks may overflow float32.
  bool (*overflows)(const float* scale, const float* low, const float* high, size_t n);
};

// The best set that this machine has, or the one that BLOCKSCALE_ISA names. Null where it names one
// that is unknown or that the machine lacks.
const Kernels* kernels();
// The name of the set in use; empty where there is none.
const char* chosen_isa();
// "baseline avx2 avx512": what this machine can run.
const char* available_isas();
// Choose by name for this process ("" for the best); false if it cannot be had.
bool choose_isa(const char* name);

}  // namespace bs
