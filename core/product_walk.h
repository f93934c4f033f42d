// Walks groups of columns and tiles of rows with a kernel. Included once per instruction set,
// inside its namespace.

// Where group g's blocks from b on lie.
static Weights weights_at(const WeightView& w, size_t g, size_t b) {
  const size_t runs = (w.blocks + w.run - 1) / w.run;
  const size_t codes = code_bytes(w.code), scales = scale_bytes(w.scale);
  return {w.codes + (g * w.blocks + b) * codes,
          w.blocks * codes,
          w.scales + (g * runs + b / w.run) * scales,
          runs * scales,
          w.zero_points + (g * runs + b / w.run) * kLanes,
          runs * kLanes,
          w.scale,
          w.run,
          w.run - b % w.run};
}

static void finish_rows(const WeightView& w, const Finish& finish, const Part& part, size_t group,
                        size_t groups, const float* c) {
  const size_t column = (part.group + group) * kLanes;
  if (column >= w.n) return;
  const size_t columns = std::min(groups * kLanes, w.n - column);
  for (size_t m = 0; m < part.rows; ++m) {
    finish_row(w, finish, part.row + m, column, columns, c + m * kMostColumns);
  }
}

// All rows of a part, in the largest tiles.
template <class K, bool kPanelled>
static void tiles(const Weights& w, Rows rows, size_t count, size_t blocks, float* c) {
  const auto next = [&](size_t n) {
    rows.x += n * rows.stride;
    c += n * kMostColumns;
    count -= n;
  };
  if constexpr (kMostRows >= 6) {
    for (; count >= 6 && count != 8; next(6)) {
      K::template tile<6, 2, kPanelled>(w, rows, blocks, c);
    }
    for (; count >= 4; next(4)) K::template tile<4, 2, kPanelled>(w, rows, blocks, c);
  }
  if constexpr (kMostRows >= 2) {
    for (; count >= 2; next(2)) K::template tile<2, 2, kPanelled>(w, rows, blocks, c);
  }
  for (; count >= 1; next(1)) K::template tile<1, 2, kPanelled>(w, rows, blocks, c);
}

// Few rows: codes are decoded where they are used.
template <class K>
static void walk_few(const WeightView& w, const Rows& rows, const Part& part, float* c,
                     const Finish& finish) {
  for (size_t g = 0; g < part.groups;) {
    const Weights at = weights_at(w, part.group + g, 0);
    const size_t together = part.rows == 1 && part.groups - g >= 4 ? 4 : 2;
    memset(c, 0, part.rows * kMostColumns * sizeof(float));
    if (together == 4) {
      K::template tile<1, 4, false>(at, rows, w.blocks, c);
    } else {
      tiles<K, false>(at, rows, part.rows, w.blocks, c);
    }
    finish_rows(w, finish, part, g, together, c);
    g += together;
  }
}

// Many: two groups are decoded once for all rows, as many blocks at a time as stay in a near
// cache; of runs whose sums are integers, whole ones.
template <class K>
static void walk_many(const WeightView& w, const Rows& rows, const Part& part, float* c,
                      uint8_t* panel, const Finish& finish) {
  constexpr size_t most = kPanelBytes / (2 * K::kPanel);
  const size_t depth = w.run >= most ? most : most / w.run * w.run;
  for (size_t g = 0; g < part.groups; g += 2) {
    memset(c, 0, part.rows * kMostColumns * sizeof(float));
    for (size_t b = 0; b < w.blocks; b += depth) {
      const size_t blocks = std::min(depth, w.blocks - b);
      const Rows from{rows.x + b * K::kX, rows.stride};
      Weights at = weights_at(w, part.group + g, b);
      if constexpr (K::kPanels) {
        K::expand(at, blocks, panel);
        K::expand(weights_at(w, part.group + g + 1, b), blocks, panel + depth * K::kPanel);
        at.codes = panel;
        at.code_step = depth * K::kPanel;
      }
      tiles<K, K::kPanels>(at, from, part.rows, blocks, c);
    }
    finish_rows(w, finish, part, g, 2, c);
  }
}

template <class K>
static void product(const WeightView& w, const XView& x, const Part& part, uint8_t* scratch,
                    const Finish& finish) {
  const Rows rows{x.rows + part.row * x.stride, x.stride};
  auto* c = reinterpret_cast<float*>(scratch + kPanelBytes);
  if constexpr (kDecodesInPlace) {
    if (part.rows <= K::kFew) return walk_few<K>(w, rows, part, c, finish);
  }
  walk_many<K>(w, rows, part, c, scratch, finish);
}
