// Tiles: kRows rows of x with kGroups groups of 16 columns, over a range of blocks. A kernel keeps
// two sums of each, one within a block and one over blocks, so that a result is added up in one
// order whatever tile it is in. Included once per instruction set, inside its namespace.

// Where a tile finds its weights: those of its first group, from its first block on.
struct Weights {
  const uint8_t* codes;
  size_t code_step;  // from group to group
  const uint8_t* scales;
  size_t scale_step;
  const uint8_t* zeros;
  size_t zero_step;
  ScaleKind scale;
  size_t run;   // blocks that share a scale
  size_t left;  // of the first run
};

struct Rows {
  const uint8_t* x;
  size_t stride;
};

// The sums over blocks.
template <int kRows, int kGroups>
struct Sums {
  float* c;
  F f[kRows][kGroups];
  BS_INLINE explicit Sums(float* at) : c(at) {
    BS_UNROLL
    for (int m = 0; m < kRows; ++m) {
      BS_UNROLL
      for (int g = 0; g < kGroups; ++g) f[m][g] = load_f(c + m * kMostColumns + g * kLanes);
    }
  }
  BS_INLINE void store() const {
    BS_UNROLL
    for (int m = 0; m < kRows; ++m) {
      BS_UNROLL
      for (int g = 0; g < kGroups; ++g) store_f(c + m * kMostColumns + g * kLanes, f[m][g]);
    }
  }
};

// Adds the products of four elements of K: `word` gives those of a group.
template <int kRows, int kGroups, bool kWide, class Word>
static BS_INLINE void add_quad(I (&t)[kRows][kGroups], const uint8_t* const (&x)[kRows],
                               size_t offset, Word word) {
  I w[kGroups];
  BS_UNROLL
  for (int g = 0; g < kGroups; ++g) w[g] = word(g);
  BS_UNROLL
  for (int m = 0; m < kRows; ++m) {
    const I four = spread_i(x[m] + offset);
    BS_UNROLL
    for (int g = 0; g < kGroups; ++g) t[m][g] = dot8<kWide>(t[m][g], w[g], four);
  }
}

// One row of 4-bit codes: memory is the limit, and the processor looks ahead within a page only;
// wider codes are read fast enough without. Near the end of a group it is what follows the groups
// of this step that comes next.
template <size_t kStep>
static BS_INLINE void ask_for(const uint8_t* codes, size_t block, size_t blocks, size_t others) {
#if defined(__GNUC__)
  constexpr size_t ahead = 8;
  const uint8_t* at = codes + ahead * kStep + (block + ahead < blocks ? 0 : others);
  BS_UNROLL
  for (size_t i = 0; i < kStep; i += 64) __builtin_prefetch(at + i);
#endif
}

// In 4-bit codes quads q and 4 + q share a vector.
static constexpr int quad_order(Code code, int i) {
  return code_bytes(code) == 256 ? (i >> 1) + 4 * (i & 1) : i;
}

#define BS_TILE_ROWS(x, rows) \
  const uint8_t* x[kRows];    \
  BS_UNROLL                   \
  for (int m = 0; m < kRows; ++m) x[m] = (rows).x + size_t(m) * (rows).stride

// ---- the canonical dot product of int8 (numerics.md, and products.h on how it is scaled)

template <Code C>
struct Exact {
  static constexpr size_t kX = operand_bytes(Operand::kExact);
  static constexpr size_t kPanel = 8 * 64 + 64;      // bytes, and exponents in their place
  static constexpr bool kPanels = C != Code::kInt8;  // which lies as panels do
  static constexpr bool kWide = C == Code::kInt8;
  static constexpr size_t kFew = 24;  // rows up to which decoding again costs less than storing

  template <int kRows, int kGroups, bool kPanelled>
  static void tile(const Weights& w, const Rows& rows, size_t blocks, float* c) {
    Sums<kRows, kGroups> sums(c);
    BS_TILE_ROWS(x, rows);
    const Bytes<C> bytes;
    constexpr size_t step = kPanelled ? kPanel : code_bytes(C);
    const uint8_t* codes = w.codes;
    const uint8_t* scales = w.scales;
    for (size_t b = 0; b < blocks; ++b, codes += step, scales += 16) {
      if constexpr (kRows == 1 && !kPanelled && step == 256) {
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          ask_for<step>(codes + g * w.code_step, b, blocks, (kGroups - 1) * w.code_step);
        }
      }
      I t[kRows][kGroups], e[kGroups];
      BS_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        e[g] = kPanelled ? load_i(codes + g * w.code_step + 512)
                         : exponents(scales + g * w.scale_step);
      }
      BS_UNROLL
      for (int m = 0; m < kRows; ++m) {
        const I magic = spread_i(x[m] + 32);
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) t[m][g] = add(e[g], magic);
      }
      BS_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int q = kPanelled ? i : quad_order(C, i);
        add_quad<kRows, kGroups, kWide>(t, x, 4 * size_t(q), [&](int g) BS_INLINE_LAMBDA {
          const uint8_t* at = codes + g * w.code_step;
          return kPanelled ? load_i(at + 64 * q) : bytes(at, q);
        });
      }
      BS_UNROLL
      for (int m = 0; m < kRows; ++m) {
        const I magic = spread_i(x[m] + 36);
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          const F p = subtract(bits_f(t[m][g]), bits_f(add(e[g], magic)));
          sums.f[m][g] = add(sums.f[m][g], p);
        }
        x[m] += kX;
      }
    }
    sums.store();
  }

  // One group's blocks, decoded.
  static void expand(const Weights& w, size_t blocks, uint8_t* panel) {
    const Bytes<C> bytes;
    for (size_t b = 0; b < blocks; ++b, panel += kPanel) {
      const uint8_t* codes = w.codes + b * code_bytes(C);
      BS_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int q = quad_order(C, i);
        store_i(panel + 64 * q, bytes(codes, q));
      }
      store_i(panel + 512, exponents(w.scales + 16 * b));
    }
  }
};

// ---- the same of int16: two halves of a block, for sums below 2^22; both and their sum are exact

template <Code C>
struct ExactWide {
  static constexpr size_t kX = operand_bytes(Operand::kExactWide);
  static constexpr size_t kPanel = 16 * 64 + 64;
  static constexpr bool kPanels = true;
  static constexpr size_t kFew = 6;

  template <int kRows, int kGroups, bool kPanelled>
  static void tile(const Weights& w, const Rows& rows, size_t blocks, float* c) {
    Sums<kRows, kGroups> sums(c);
    BS_TILE_ROWS(x, rows);
    const Shorts<C> shorts;
    constexpr size_t step = kPanelled ? kPanel : code_bytes(C);
    const uint8_t* codes = w.codes;
    const uint8_t* scales = w.scales;
    for (size_t b = 0; b < blocks; ++b, codes += step, scales += 16) {
      F p[kRows][kGroups];
      BS_UNROLL
      for (int half = 0; half < 2; ++half) {
        I t[kRows][kGroups], e[kGroups];
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          e[g] = kPanelled ? load_i(codes + g * w.code_step + 1024)
                           : exponents(scales + g * w.scale_step);
        }
        BS_UNROLL
        for (int m = 0; m < kRows; ++m) {
          BS_UNROLL
          for (int g = 0; g < kGroups; ++g) t[m][g] = add(e[g], spread_i(x[m] + 64));
        }
        BS_UNROLL
        for (int i = 8 * half; i < 8 * half + 8; ++i) {
          I v[kGroups];
          BS_UNROLL
          for (int g = 0; g < kGroups; ++g) {
            const uint8_t* at = codes + g * w.code_step;
            v[g] = kPanelled ? load_i(at + 64 * i) : shorts(at, i >> 1, i & 1);
          }
          BS_UNROLL
          for (int m = 0; m < kRows; ++m) {
            const I two = spread_i(x[m] + 4 * i);
            BS_UNROLL
            for (int g = 0; g < kGroups; ++g) t[m][g] = dot16(t[m][g], v[g], two);
          }
        }
        BS_UNROLL
        for (int m = 0; m < kRows; ++m) {
          BS_UNROLL
          for (int g = 0; g < kGroups; ++g) {
            const F part = subtract(bits_f(t[m][g]), bits_f(add(e[g], spread_i(x[m] + 64))));
            p[m][g] = half ? add(p[m][g], part) : part;
          }
        }
      }
      BS_UNROLL
      for (int m = 0; m < kRows; ++m) {
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) sums.f[m][g] = add(sums.f[m][g], p[m][g]);
        x[m] += kX;
      }
    }
    sums.store();
  }

  static void expand(const Weights& w, size_t blocks, uint8_t* panel) {
    const Shorts<C> shorts;
    for (size_t b = 0; b < blocks; ++b, panel += kPanel) {
      const uint8_t* codes = w.codes + b * code_bytes(C);
      BS_UNROLL
      for (int i = 0; i < 16; ++i) store_i(panel + 64 * i, shorts(codes, i >> 1, i & 1));
      store_i(panel + 1024, exponents(w.scales + 16 * b));
    }
  }
};
