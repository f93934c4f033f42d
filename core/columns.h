// MX blocks that run across rows, float32: a tile of columns is rounded while the next one is read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine.h"
#include "kernels.h"
#include "tiling.h"

namespace bs {

// One task's walk over tiles. Memory is taken when it is made.
class ColumnWalk {
 public:
  using Stream = void (*)(const float* from, float* to, size_t n);

  // `stream`: results go past the caches; else null.
  ColumnWalk(const Job& job, const ColumnKernels& kernels, const Tiling& tiling, Stream stream)
      : job_(job),
        g_(job.geometry),
        kernels_(kernels),
        tiling_(tiling),
        stream_(stream),
        now_(tiling),
        next_(tiling),
        grids_(3 * room(tiling)),
        y_(room(tiling)) {}

  // Tiles first … last - 1. `general(tile)` does what these kernels leave.
  template <class General>
  void run(int64_t first, int64_t last, General general) {
    if (first == last) return;
    begin(now_, first);
    see_the_rest(now_);
    for (int64_t i = first; i < last; ++i) {
      has_next_ = i + 1 < last;
      if (has_next_) begin(next_, i + 1);
      const Tile& tile = now_.tile;
      const auto n = size_t(tile.columns);
      if (kernels_.grids(job_.numbers, now_.amax.data(), n, grids())) {
        round_tile(tile);
      } else {
        general(tile);
      }
      if (has_next_) see_the_rest(next_);
      std::swap(now_, next_);
    }
  }

 private:
  struct Columns {
    Tile tile{};
    std::vector<uint32_t> amax;
    int64_t seen = 0;  // rows

    explicit Columns(const Tiling& t) : amax(room(t)) {}
  };

  static size_t room(const Tiling& t) { return size_t(t.columns) + 16; }

  void begin(Columns& c, int64_t index) const {
    place(g_, tiling_, index, c.tile);
    std::fill(c.amax.begin(), c.amax.end(), 0u);
    c.seen = 0;
  }

  const float* x_row(const Tile& tile, int64_t r) const {
    const int64_t last = tile.row_count - 1;
    const int64_t at = g_.row(tile.rows, tile.first_row + std::min(r, last)).x + tile.column;
    return static_cast<const float*>(job_.x) + at;
  }

  ColumnKernels::Next next_row(Columns& c) const {
    const int64_t r = c.seen++;
    return {x_row(c.tile, r), x_row(c.tile, r + 1), c.amax.data()};
  }

  void see_the_rest(Columns& c) const {
    while (c.seen < c.tile.row_count) kernels_.look(next_row(c), size_t(c.tile.columns));
  }

  ColumnKernels::Grids grids() {
    const size_t n = room(tiling_);
    return {grids_.data(), grids_.data() + n, grids_.data() + 2 * n};
  }

  void round_tile(const Tile& tile) {
    const auto n = size_t(tile.columns);
    const bool together = has_next_ && next_.tile.columns == tile.columns;
    for (int64_t r = 0; r < tile.row_count; ++r) {
      const int64_t at = g_.row(tile.rows, tile.first_row + r).y + tile.column;
      float* to = static_cast<float*>(job_.y) + at;
      const bool looks = together && next_.seen < next_.tile.row_count;
      const ColumnKernels::Next other = looks ? next_row(next_) : ColumnKernels::Next{};
      kernels_.row(job_.numbers, x_row(tile, r), n, grids(), stream_ != nullptr ? y_.data() : to,
                   looks ? &other : nullptr);
      if (stream_ != nullptr) stream_(y_.data(), to, n);
    }
  }

  const Job& job_;
  const Geometry& g_;
  const ColumnKernels& kernels_;
  const Tiling& tiling_;
  Stream stream_;
  Columns now_, next_;
  bool has_next_ = false;
  std::vector<float> grids_, y_;
};

}  // namespace bs
