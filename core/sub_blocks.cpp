#include "sub_blocks.h"

#include <algorithm>

#include "range_ends.h"

namespace bs {

namespace {

constexpr int64_t kTogether = 4096;  // elements: they stay in the nearest cache

int64_t length_of(const Geometry& g) {
  return g.inner().extent > 1 ? g.inner().extent : std::max<int64_t>(g.rows(), 1);
}

// As many blocks as `kTogether` elements have, in whole vectors.
size_t room_of(int64_t length) {
  return size_t(std::max<int64_t>(kTogether / length, 16)) / 16 * 16;
}

size_t runs_of(int64_t length, const Numbers& n) {
  return size_t((length + n.sub_block - 1) / n.sub_block);
}

}  // namespace

SubBlockWalk::SubBlockWalk(const Job& job, const Kernels& kernels)
    : job_(job),
      g_(job.geometry),
      kernels_(kernels),
      along_(g_.inner().extent > 1),
      length_(length_of(g_)),
      room_(room_of(length_)),
      runs_(runs_of(length_, job.numbers)),
      params_(job.numbers, runs_ * room_),
      x_(size_t(length_) * room_),
      y_(size_t(length_) * room_),
      amax_(room_),
      exponents_(room_) {
  const Dim& inner = g_.inner();
  const bool floats = job.x_type == TensorType::kF32 && job.y_type == TensorType::kF32;
  if (along_ || !floats || inner.x != 1 || inner.y != 1 || job.numbers.sub_block != 2) return;
  columns_ = kernels.columns(job.numbers);
  if (columns_.pair == nullptr) return;
  grids_.resize(3 * room_);
  rows_.resize(size_t(length_));
}

void SubBlockWalk::run(const Tile& tile) {
  const int64_t blocks = along_ ? (tile.columns + length_ - 1) / length_ : tile.columns;
  for (size_t j = 0; j < rows_.size() && int64_t(j) < tile.row_count; ++j) {
    rows_[j] = g_.row(tile.rows, tile.first_row + int64_t(j));
  }
  for (int64_t b = 0; b < blocks; b += int64_t(room_)) {
    const size_t n = std::min(room_, size_t(blocks - b));
    if (columns_.pair != nullptr && round_pairs(tile, b, n)) continue;
    load(tile, b, n);
    choose(n);
    round_rows(n);
    store(tile, b, n);
  }
}

// Maxima and results of pairs of rows as they lie in memory; false, and nothing done, where the
// general kernels are needed.
bool SubBlockWalk::round_pairs(const Tile& tile, int64_t block, size_t blocks) {
  const int64_t column = tile.column + block;
  auto row = [&](int64_t j) { return rows_[size_t(std::min(j, tile.row_count - 1))]; };
  auto x = [&](int64_t j) { return static_cast<const float*>(job_.x) + row(j).x + column; };
  auto y = [&](int64_t j) { return static_cast<float*>(job_.y) + row(j).y + column; };
  std::fill(amax_.begin(), amax_.end(), 0u);
  for (int64_t j = 0; j < tile.row_count; ++j) {
    columns_.look({x(j), x(j + 1), amax_.data()}, blocks);
  }
  const ColumnKernels::Grids grids{grids_.data(), grids_.data() + room_, grids_.data() + 2 * room_};
  if (!columns_.grids(job_.numbers, amax_.data(), blocks, grids)) return false;
  for (int64_t j = 0; j < tile.row_count; j += 2) {
    const float* const from[] = {x(j), x(j + 1)};
    float* const to[] = {y(j), y(j + 1)};
    columns_.pair(job_.numbers, from, blocks, grids, to);
  }
  return true;
}

SubBlockWalk::Row SubBlockWalk::row_of(const Tile& tile, int64_t block, size_t blocks,
                                       int64_t j) const {
  const Dim& inner = g_.inner();
  const int64_t step = along_ ? length_ : 1;
  const int64_t column = tile.column + block * step + (along_ ? j : 0);
  Row row{};
  if (!along_ && j >= tile.row_count) return row;  // of short blocks
  row.first = g_.row(tile.rows, tile.first_row + (along_ ? 0 : j));
  row.first.x += column * inner.x;
  row.first.y += column * inner.y;
  row.x_step = step * inner.x;
  row.y_step = step * inner.y;
  const int64_t left = tile.column + tile.columns - column;
  row.size = left <= 0 ? 0 : std::min(blocks, size_t((left + step - 1) / step));
  return row;
}

Piece SubBlockWalk::piece_of(int64_t j, size_t blocks) {
  Piece piece{};
  piece.x = x_.data() + size_t(j) * blocks;
  piece.size = blocks;
  piece.across = Across::kColumns;
  piece.params = params_.params_from(size_t(j / job_.numbers.sub_block) * blocks);
  return piece;
}

// What a short block lacks is 0.
void SubBlockWalk::load(const Tile& tile, int64_t block, size_t blocks) {
  const auto* base = static_cast<const unsigned char*>(job_.x);
  for (int64_t j = 0; j < length_; ++j) {
    float* to = x_.data() + size_t(j) * blocks;
    const Row row = row_of(tile, block, blocks, j);
    const auto* from = base + row.first.x * kElementSize[int(job_.x_type)];
    if (row.size > 0) kernels_.load[int(job_.x_type)](from, row.x_step, to, row.size);
    std::fill(to + row.size, to + blocks, 0.0f);
  }
  if (!job_.numbers.flushes) return;
  for (size_t i = 0; i < size_t(length_) * blocks; ++i) {
    const uint32_t bits = bits_of(x_[i]);
    x_[i] = float_of((bits & kInfBits) == 0 ? bits & kSign : bits);
  }
}

// The scale of a sub-block is that of its own elements, if it is not too far below its block's.
void SubBlockWalk::choose(size_t blocks) {
  const Numbers& numbers = job_.numbers;
  const size_t all = runs_ * blocks;
  params_.overflows = false;
  params_.lifted = false;
  params_.clear_extremes(all);
  uint32_t* amax = params_.extremes().amax;
  for (int64_t j = 0; j < length_; ++j) {
    kernels_.amax(piece_of(j, blocks), kMagnitude, amax + size_t(j / numbers.sub_block) * blocks);
  }
  int32_t* own = params_.exponents();
  kernels_.mx_exponents(numbers, amax, all, own);
  std::copy_n(amax, blocks, amax_.data());
  for (size_t i = blocks; i < all; ++i) {
    amax_[i % blocks] = std::max(amax_[i % blocks], amax[i]);
  }
  kernels_.mx_exponents(numbers, amax_.data(), blocks, exponents_.data());
  const int32_t most = (1 << numbers.sub_shift) - 1;
  for (size_t run = 0; run < runs_; ++run) {
    for (size_t b = 0; b < blocks; ++b) {
      const size_t i = run * blocks + b;
      own[i] = std::max(own[i], exponents_[b] - most);
      amax[i] = amax_[b];  // NaN and Inf are of the whole block
    }
  }
  params_from_exponents({numbers, {}, job_.x_type, kernels_}, params_, all);
}

void SubBlockWalk::round_rows(size_t blocks) {
  const FakeKernel fake = kernels_.fake(job_.numbers);
  for (int64_t j = 0; j < length_; ++j) {
    const Piece piece = piece_of(j, blocks);
    float* x = x_.data() + size_t(j) * blocks;
    float* y = y_.data() + size_t(j) * blocks;
    const float* lift = params_.lift() + size_t(j / job_.numbers.sub_block) * blocks;
    if (params_.lifted) {
      for (size_t b = 0; b < blocks; ++b) x[b] *= lift[b];
    }
    fake(piece, job_.numbers, y);
    if (params_.lifted) {
      for (size_t b = 0; b < blocks; ++b) y[b] /= lift[b];
    }
  }
}

void SubBlockWalk::store(const Tile& tile, int64_t block, size_t blocks) {
  auto* base = static_cast<unsigned char*>(job_.y);
  const size_t count = size_t(length_) * blocks;
  if (params_.overflows && job_.numbers.saturates) saturate(y_.data(), count);
  if (!job_.numbers.saturates) overflow_to_infinity(y_.data(), count, job_.y_type);
  for (int64_t j = 0; j < length_; ++j) {
    const Row row = row_of(tile, block, blocks, j);
    auto* to = base + row.first.y * kElementSize[int(job_.y_type)];
    if (row.size > 0) {
      kernels_.store[int(job_.y_type)](y_.data() + size_t(j) * blocks, to, row.y_step, row.size);
    }
  }
}

}  // namespace bs
