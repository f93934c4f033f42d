// MX blocks that lie along rows, in the hands of row kernels: as they lie in memory where that can
// be, else by way of float32 in the nearest cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine.h"
#include "kernels.h"
#include "tiling.h"

namespace bs {

// Memory of one task.
struct RowRoom {
  float *x, *y;  // kPiece elements each
  uint8_t* codes;
};

class RowWalk {
 public:
  // Whether job and tensor have row kernels says `found`. `stream`: results go past the caches.
  RowWalk(const Job& job, bool codes, const Kernels& kernels, bool stream)
      : job_(job), g_(job.geometry), kernels_(kernels), length_(g_.inner().extent) {
    if (job.scales != Scales::kChosen || length_ <= 1 || g_.rows() != 1) return;
    const Numbers& numbers = job.numbers;
    const auto length = size_t(length_);
    const bool adjacent = g_.inner().x == 1;
    if (codes) {
      if (adjacent) code_ = kernels.row_code(numbers, job.x_type, length);
      return;
    }
    if (adjacent && g_.inner().y == 1 && !stream) {
      fake_ = kernels.row_fake(numbers, job.x_type, length);
      direct_ = fake_ != nullptr;
    }
    // Where single blocks in turn are as fast as memory, they suit it better.
    const bool fused = length_ == 32 && kernels.fused_fake(numbers) != nullptr;
    if (!direct_ && !fused) fake_ = kernels.row_fake(numbers, TensorType::kF32, length);
  }

  bool found() const { return fake_ != nullptr || code_ != nullptr; }

  // A tile of one row. `general(tile)` does what these kernels leave; `store(values, to, n)` puts
  // results where they belong; `scales`: where those of the tile's blocks go.
  template <class General, class Store>
  void run(const Tile& tile, const RowRoom& room, uint8_t* scales, General general,
           Store store) const {
    const int64_t end = tile.column + tile.columns;
    const int64_t whole = tile.column + tile.columns / length_ * length_;
    const int64_t most = int64_t(kPiece) / length_ * length_;
    const Offset row = g_.row(tile.rows, tile.first_row);
    Tile part = tile;
    for (int64_t c = tile.column; c < end;) {
      const auto blocks = size_t(std::min(most, whole - c) / length_);
      const int64_t block = c / length_ - tile.first_block;
      size_t done = 0;
      if (blocks > 0 && fake_ != nullptr) done = fake(row, c, blocks, room, store);
      if (blocks > 0 && code_ != nullptr) done = code(row, c, blocks, room, scales + block);
      c += int64_t(done) * length_;
      if (done == blocks && c < whole) continue;
      part.column = c;
      part.columns = std::min(int64_t(kRowGroup) * length_, (c < whole ? whole : end) - c);
      part.first_block = c / length_;
      part.blocks = size_t((part.columns + length_ - 1) / length_);
      part.at = tile.at + (part.first_block - tile.first_block);
      if (part.columns > 0) general(part);
      c += part.columns;
    }
  }

 private:
  template <class Store>
  size_t fake(const Offset& row, int64_t column, size_t blocks, const RowRoom& room,
              Store store) const {
    const Dim& inner = g_.inner();
    const auto size = kElementSize[int(job_.x_type)];
    const auto* from =
        static_cast<const unsigned char*>(job_.x) + (row.x + column * inner.x) * size;
    unsigned char* to = static_cast<unsigned char*>(job_.y) + (row.y + column * inner.y) * size;
    if (direct_) return fake_(from, blocks, job_.numbers, to);
    const size_t n = blocks * size_t(length_);
    const void* x = from;
    if (job_.x_type != TensorType::kF32 || inner.x != 1) {
      kernels_.load[int(job_.x_type)](from, inner.x, room.x, n);
      x = room.x;
    }
    const size_t done = fake_(x, blocks, job_.numbers, room.y);
    store(room.y, to, done * size_t(length_));
    return done;
  }

  size_t code(const Offset& row, int64_t column, size_t blocks, const RowRoom& room,
              uint8_t* scales) const {
    const int bits = job_.numbers.element_format().stored_bits();
    const auto* from = static_cast<const unsigned char*>(job_.x) +
                       (row.x + column) * kElementSize[int(job_.x_type)];
    unsigned char* to = static_cast<unsigned char*>(job_.y) + (row.y + column * bits) / 8;
    const size_t done = code_(from, blocks, job_.numbers, bits == 8 ? to : room.codes, scales);
    if (bits < 8) kernels_.pack(room.codes, done * size_t(length_), bits, to);
    return done;
  }

  const Job& job_;
  const Geometry& g_;
  const Kernels& kernels_;
  int64_t length_;
  bool direct_ = false;
  RowFakeKernel fake_ = nullptr;
  RowCodeKernel code_ = nullptr;
};

}  // namespace bs
