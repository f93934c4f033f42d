#include "geometry.h"

#include <algorithm>
#include <cstdlib>

namespace bs {

Geometry Geometry::make(std::span<const int64_t> shape, std::span<const int64_t> block,
                        std::span<const int64_t> x_strides, std::span<const int64_t> y_strides,
                        int64_t y_unit, int64_t row_bits, bool packed) {
  Geometry g;
  const int rank = int(shape.size());
  int64_t dense = 1;
  int64_t y = y_unit;
  for (int i = rank - 1; i >= 0; --i) {
    Dim& dim = g.dims_[size_t(i)];
    dim.size = shape[size_t(i)];
    const int64_t whole = std::max<int64_t>(dim.size, 1);
    dim.extent = block[size_t(i)] == 0 ? whole : std::min(block[size_t(i)], whole);
    dim.x = x_strides.empty() ? dense : x_strides[size_t(i)];
    dim.y = y_strides.empty() ? y : y_strides[size_t(i)];
    dim.index = dense;
    g.block_count_ *= block[size_t(i)] == 0 ? 1 : dim.blocks();
    dense *= dim.size;
    y = i == rank - 1 && row_bits != 0 ? row_bits : y * dim.size;
  }
  g.size_ = dense;
  g.rank_ = rank;
  g.merge(packed);
  return g;
}

void Geometry::sort_by_output() {
  dims_[size_t(rank_)] = inner_;
  ++rank_;
  std::stable_sort(dims_.begin(), dims_.begin() + rank_,
                   [](const Dim& a, const Dim& b) { return std::abs(a.y) > std::abs(b.y); });
  merge();
}

void Geometry::merge(bool keep_last) {
  // Innermost first; `merged` holds the result from the right.
  std::array<Dim, kMaxRank> merged;
  int count = 0;
  for (int i = rank_ - 1; i >= 0; --i) {
    const Dim outer = dims_[size_t(i)];
    if (outer.size == 1 && !(keep_last && i == rank_ - 1)) continue;
    if (count > 0) {
      Dim& inner = merged[size_t(count - 1)];
      const bool adjoin = outer.x == inner.size * inner.x && outer.y == inner.size * inner.y &&
                          outer.index == inner.size * inner.index && inner.size > 0;
      const bool whole = inner.extent == inner.size;
      const bool even = outer.extent == 1 && inner.size % std::max<int64_t>(inner.extent, 1) == 0;
      if (adjoin && (whole || even)) {
        inner.extent *= whole ? outer.extent : 1;
        inner.size *= outer.size;
        continue;
      }
    }
    merged[size_t(count++)] = outer;
  }
  if (count == 0) merged[size_t(count++)] = Dim{1, 1, 1, 1, 1};
  rank_ = count - 1;
  for (int i = 0; i < rank_; ++i) dims_[size_t(i)] = merged[size_t(count - 1 - i)];
  inner_ = merged[0];
  finish();
}

void Geometry::finish() {
  outer_blocks_ = 1;
  rows_ = 1;
  for (int i = 0; i < rank_; ++i) {
    outer_blocks_ *= dims_[size_t(i)].blocks();
    rows_ *= dims_[size_t(i)].extent;
  }
}

void Geometry::rows_of(int64_t outer_block, Rows& rows) const {
  rows.first = {};
  rows.count = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    const Dim& dim = dims_[size_t(i)];
    const int64_t blocks = dim.blocks();
    const int64_t start = outer_block % blocks * dim.extent;
    outer_block /= blocks;
    rows.lengths[size_t(i)] = std::min(dim.extent, dim.size - start);
    rows.count *= rows.lengths[size_t(i)];
    rows.first.x += start * dim.x;
    rows.first.y += start * dim.y;
    rows.first.index += start * dim.index;
  }
}

Offset Geometry::row(const Rows& rows, int64_t r) const {
  Offset offset = rows.first;
  for (int i = rank_ - 1; i >= 0 && r > 0; --i) {
    const Dim& dim = dims_[size_t(i)];
    const int64_t at = r % rows.lengths[size_t(i)];
    r /= rows.lengths[size_t(i)];
    offset.x += at * dim.x;
    offset.y += at * dim.y;
    offset.index += at * dim.index;
  }
  return offset;
}

}  // namespace bs
