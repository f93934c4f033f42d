// MX blocks whose sub-blocks have scales of their own (MX9, MX6, MX4): fake-quantize. Blocks are
// laid side by side, an element of each in a row, so that the kernels for blocks that run across
// rows do the work.
#pragma once

#include <cstdint>
#include <vector>

#include "block_params.h"
#include "engine.h"
#include "kernels.h"
#include "tiling.h"

namespace bs {

// One task's walk over tiles of whole blocks. Memory is taken when it is made.
class SubBlockWalk {
 public:
  SubBlockWalk(const Job& job, const Kernels& kernels);

  void run(const Tile& tile);

 private:
  // Element j of the blocks of a group: where the first one lies, the step to the next, how many.
  struct Row {
    Offset first;
    int64_t x_step, y_step;
    size_t size;
  };
  bool round_pairs(const Tile& tile, int64_t block, size_t blocks);
  Row row_of(const Tile& tile, int64_t block, size_t blocks, int64_t j) const;
  Piece piece_of(int64_t j, size_t blocks);
  void load(const Tile& tile, int64_t block, size_t blocks);
  void choose(size_t blocks);
  void round_rows(size_t blocks);
  void store(const Tile& tile, int64_t block, size_t blocks);

  const Job& job_;
  const Geometry& g_;
  const Kernels& kernels_;
  ColumnKernels columns_{};  // of pairs across rows that need no copies
  bool along_;               // blocks lie along rows
  int64_t length_;           // elements of a block
  size_t room_;              // blocks that are side by side at a time
  size_t runs_;              // sub-blocks of a block
  ParamBuffer params_;
  std::vector<Offset> rows_;  // of the tile at hand, where they are needed
  std::vector<float> x_, y_, grids_;
  std::vector<uint32_t> amax_;
  std::vector<int32_t> exponents_;
};

}  // namespace bs
