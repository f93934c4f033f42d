#include "tiling.h"

#include <algorithm>
#include <numeric>

#include "kernels.h"

namespace bs {

namespace {

constexpr int64_t kWhole = INT64_MAX;

int64_t up_to_multiple(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

Tiling tiling(const Geometry& g, int64_t columns, int64_t rows) {
  const Dim& inner = g.inner();
  Tiling t{};
  t.columns = std::min(columns, std::max<int64_t>(inner.size, 1));
  t.rows = std::min(rows, g.rows());
  t.row_chunks = (g.rows() + t.rows - 1) / std::max<int64_t>(t.rows, 1);
  t.column_chunks = (inner.size + t.columns - 1) / t.columns;
  t.count = g.outer_blocks() * t.row_chunks * t.column_chunks;
  const int64_t blocks = t.columns / std::max<int64_t>(inner.extent, 1) + 2;
  t.blocks = size_t(std::min(blocks, inner.blocks()));
  return t;
}

}  // namespace

Tiling whole_blocks(const Geometry& g) {
  const Dim& inner = g.inner();
  const int64_t rows = std::max<int64_t>(g.rows(), 1);
  if (inner.extent >= inner.size) return tiling(g, std::max<int64_t>(inner.size, 1), kWhole);
  if (inner.extent == 1) {
    const int64_t columns = std::clamp<int64_t>(131072 / rows, 64, int64_t(kPiece));
    return tiling(g, up_to_multiple(columns, 16), kWhole);
  }
  const int64_t unit = std::lcm(inner.extent, int64_t{8});
  return tiling(g, up_to_multiple(std::max<int64_t>(8192 / rows, 1), unit), kWhole);
}

Tiling column_blocks(const Geometry& g) {
  const int64_t rows = std::max<int64_t>(g.rows(), 1);
  return tiling(g, std::clamp<int64_t>(65536 / rows / 64 * 64, 64, int64_t(kPiece)), kWhole);
}

Tiling free_tiles(const Geometry& g) {
  const int64_t columns = g.inner().extent == 1 ? int64_t(kPiece) : 4 * int64_t(kPiece);
  return tiling(g, columns, std::max<int64_t>(1, 16384 / std::min(columns, g.inner().size + 1)));
}

void place(const Geometry& g, const Tiling& t, int64_t index, Tile& tile) {
  const Dim& inner = g.inner();
  const int64_t chunk = index % t.column_chunks;
  const int64_t down = index / t.column_chunks % t.row_chunks;
  const int64_t outer = index / t.column_chunks / t.row_chunks;
  g.rows_of(outer, tile.rows);
  tile.first_row = std::min(down * t.rows, tile.rows.count);
  tile.row_count = std::min(t.rows, tile.rows.count - tile.first_row);
  tile.column = chunk * t.columns;
  tile.columns = std::min(t.columns, inner.size - tile.column);
  tile.first_block = tile.column / inner.extent;
  tile.blocks = size_t((tile.column + tile.columns - 1) / inner.extent - tile.first_block + 1);
  tile.at = outer * inner.blocks() + tile.first_block;
}

}  // namespace bs
