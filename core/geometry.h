// Where elements lie and which block they belong to, brought to one form: rows of one inner
// dimension, grouped by the blocks of the outer dimensions.
//
// Dimensions that can be walked as one are merged: [n, 64] with blocks of 32 along the last becomes
// [n · 64] with blocks of 32; per tensor becomes one dimension that is one block. Merging keeps the
// row-major order of elements and of blocks.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace bs {

inline constexpr int kMaxRank = 64;

struct Dim {
  int64_t size;
  int64_t extent;  // elements a block, 1 … size
  int64_t x;       // stride of the input, in elements
  int64_t y;       // stride of the output, in elements or, for codes, in bits
  int64_t index;   // stride of the flat index

  int64_t blocks() const { return (size + extent - 1) / extent; }
};

struct Offset {
  int64_t x = 0, y = 0, index = 0;
};

class Geometry {
 public:
  // shape and block (0: whole) as in Layout; strides may be empty for contiguous.
  // `y_unit`: stride of the last dimension of a contiguous output; `row_bits`: of its row, 0 if
  // dense. `packed`: on one side are codes, whose rows begin on a byte: the last dimension stays
  // the inner one even if its size is 1.
  static Geometry make(std::span<const int64_t> shape, std::span<const int64_t> block,
                       std::span<const int64_t> x_strides, std::span<const int64_t> y_strides,
                       int64_t y_unit, int64_t row_bits, bool packed = false);

  // Walk in the order in which the output lies in memory. Changes the order of blocks.
  void sort_by_output();

  int64_t size() const { return size_; }
  const Dim& inner() const { return inner_; }
  int64_t outer_blocks() const { return outer_blocks_; }
  // A whole dimension is one block even where it is empty.
  int64_t block_count() const { return block_count_; }
  // Rows of the largest outer block.
  int64_t rows() const { return rows_; }

  // One block of the outer dimensions.
  struct Rows {
    std::array<int64_t, kMaxRank> lengths;
    Offset first;
    int64_t count;
  };
  void rows_of(int64_t outer_block, Rows& rows) const;
  Offset row(const Rows& rows, int64_t i) const;

 private:
  void merge(bool keep_last = false);
  void finish();

  int rank_ = 0;  // outer dimensions
  std::array<Dim, kMaxRank> dims_;
  Dim inner_{};
  int64_t size_ = 0;
  int64_t block_count_ = 1;
  int64_t outer_blocks_ = 1;
  int64_t rows_ = 1;
};

}  // namespace bs
