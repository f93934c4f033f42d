// How a tensor is cut into tiles: the unit of work of a task.
#pragma once

#include <cstddef>
#include <cstdint>

#include "geometry.h"

namespace bs {

// A tile is one outer block (or some of its rows) by some columns; columns start at multiples of 8,
// so that packed codes of two tiles never share a byte.
struct Tiling {
  int64_t columns;     // a tile
  int64_t rows;        // a tile
  int64_t row_chunks;  // tiles of an outer block, downward
  int64_t column_chunks;
  int64_t count;
  size_t blocks;  // most blocks that a tile touches
};

// Tiles of whole blocks: their extremes are found and used while the data is in the nearest cache.
Tiling whole_blocks(const Geometry& g);

// The same where blocks run across rows: two tiles and the results of one fit in the second cache,
// and memory is read in runs as long as that allows.
Tiling column_blocks(const Geometry& g);

// Tiles for known parameters: any rows, any columns.
Tiling free_tiles(const Geometry& g);

// One tile's place.
struct Tile {
  Geometry::Rows rows;
  int64_t first_row, row_count;
  int64_t column, columns;
  int64_t first_block;  // within the inner dimension
  size_t blocks;
  int64_t at;  // index of the first block in the stored parameters
};

void place(const Geometry& g, const Tiling& t, int64_t index, Tile& tile);

}  // namespace bs
