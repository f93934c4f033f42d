// Tiles whose sums of blocks are scaled in float32: integers by int8, and real numbers. Included
// once per instruction set, inside its namespace.

// The scales of a run of blocks; of `half` a block where each has its own.
static BS_INLINE F scale_of(ScaleKind kind, const uint8_t* at, int half) {
  switch (kind) {
    case ScaleKind::kE8m0:
      return scale_e8m0(at);
    case ScaleKind::kE4m3:
      return scale_e4m3(at + 16 * half);
    case ScaleKind::kF32:
      return load_f(at);
    case ScaleKind::kBf16:
      return scale_bf16(at);
    case ScaleKind::kF16:
      return scale_f16(at);
    default:
      return splat_f(1.0f);
  }
}

template <Code C, bool kZeros>
struct Scaled {
  static constexpr size_t kX = operand_bytes(Operand::kInt8);
  static constexpr size_t kPanel = 8 * 64;
  static constexpr bool kPanels = C != Code::kInt8;
  static constexpr bool kWide = C == Code::kInt8;
  static constexpr size_t kFew = 24;

  template <int kRows, int kGroups, bool kPanelled>
  static void tile(const Weights& w, const Rows& rows, size_t blocks, float* c) {
    Sums<kRows, kGroups> sums(c);
    BS_TILE_ROWS(x, rows);
    const Bytes<C> bytes;
    constexpr size_t step = kPanelled ? kPanel : code_bytes(C);
    const uint8_t* codes = w.codes;
    const uint8_t* scales = w.scales;
    const uint8_t* zeros = w.zeros;
    while (blocks > 0) {
      const size_t together = std::min(w.run, blocks);
      blocks -= together;
      // The first record of a run has what is beside its products.
      I t[kRows][kGroups];
      BS_UNROLL
      for (int m = 0; m < kRows; ++m) {
        const I sum = spread_i(x[m] + 32);
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          if constexpr (kZeros) {
            t[m][g] = multiply(add(widen_bytes(zeros + g * w.zero_step), splat_i(-kBias)), sum);
          } else {
            t[m][g] = sum;
          }
        }
      }
      for (size_t b = 0; b < together; ++b, codes += step) {
        BS_UNROLL
        for (int i = 0; i < 8; ++i) {
          const int q = kPanelled ? i : quad_order(C, i);
          add_quad<kRows, kGroups, kWide>(t, x, 4 * size_t(q), [&](int g) BS_INLINE_LAMBDA {
            const uint8_t* at = codes + g * w.code_step;
            return kPanelled ? load_i(at + 64 * q) : bytes(at, q);
          });
        }
        BS_UNROLL
        for (int m = 0; m < kRows; ++m) x[m] += kX;
      }
      BS_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const F scale = scale_of(w.scale, scales + g * w.scale_step, 0);
        BS_UNROLL
        for (int m = 0; m < kRows; ++m) {
          sums.f[m][g] = multiply_add(to_f(t[m][g]), scale, sums.f[m][g]);
        }
      }
      scales += scale_bytes(w.scale);
      zeros += kLanes;
    }
    sums.store();
  }

  static void expand(const Weights& w, size_t blocks, uint8_t* panel) {
    const Bytes<C> bytes;
    for (size_t b = 0; b < blocks; ++b, panel += kPanel) {
      const uint8_t* codes = w.codes + b * code_bytes(C);
      BS_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int q = quad_order(C, i);
        store_i(panel + 64 * q, bytes(codes, q));
      }
    }
  }
};

// ---- elements as bfloat16, which holds all of them, times float32 or bfloat16

// Adds the products of pair 2q + p, which are elements 4q + p and 4q + p + 2.
struct ByReal {
  static constexpr size_t kX = operand_bytes(Operand::kReal);
  static constexpr bool kQuads = true;
};
#if defined(__AVX512BF16__)
struct ByPairs {
  static constexpr size_t kX = operand_bytes(Operand::kPairs);
  static constexpr bool kQuads = false;
};
#endif

template <Code C, bool kZeros, class By>
struct Real {
  static constexpr size_t kX = By::kX;
  static constexpr size_t kPanel = 16 * 64 + 2 * 64;
  static constexpr bool kPanels = true;
  static constexpr size_t kFew = 4;
  // Of integers without zero points of their own: the code of 0.
  static constexpr int kZeroCode = C == Code::kInt4 ? 8 : 128;

  template <int kRows, int kGroups, bool kPanelled>
  static void tile(const Weights& w, const Rows& rows, size_t blocks, float* c) {
    if (w.scale == ScaleKind::kE4m3) {
      run<kRows, kGroups, kPanelled, 2>(w, rows, blocks, c);
    } else {
      run<kRows, kGroups, kPanelled, 1>(w, rows, blocks, c);
    }
  }

  template <int kRows, int kGroups, bool kPanelled, int kHalves>
  static BS_INLINE void run(const Weights& w, const Rows& rows, size_t blocks, float* c) {
    Sums<kRows, kGroups> sums(c);
    BS_TILE_ROWS(x, rows);
    [[maybe_unused]] const Pairs<C> pairs;
    constexpr size_t step = kPanelled ? kPanel : code_bytes(C);
    const uint8_t* codes = w.codes;
    const uint8_t* scales = w.scales;
    const uint8_t* zeros = w.zeros;
    size_t left = w.left;
    for (size_t b = 0; b < blocks; ++b, codes += step) {
      BS_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        F t[kRows][kGroups] = {};
        I zero[kGroups] = {};
        if constexpr (!kPanelled && is_integer(C)) {
          BS_UNROLL
          for (int g = 0; g < kGroups; ++g) zero[g] = zero_of(zeros + g * w.zero_step);
        }
        BS_UNROLL
        for (int q = 8 / kHalves * half; q < 8 / kHalves * (half + 1); ++q) {
          if constexpr (!kPanelled && By::kQuads && is_integer(C)) {
            add_integers<kRows, kGroups>(t, x, q, [&](int g, int k) BS_INLINE_LAMBDA {
              return integer_at<C>(codes + g * w.code_step, q, k, zero[g]);
            });
          } else {
            add_products<kRows, kGroups>(t, x, q, [&](int g, int p) BS_INLINE_LAMBDA {
              const uint8_t* at = codes + g * w.code_step;
              return kPanelled ? load_i(at + 64 * (2 * q + p)) : pairs(at, q, p, zero[g]);
            });
          }
        }
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          const F scale = kPanelled ? load_f(codes + g * w.code_step + 1024 + 64 * half)
                                    : scale_of(w.scale, scales + g * w.scale_step, half);
          BS_UNROLL
          for (int m = 0; m < kRows; ++m) {
            sums.f[m][g] = multiply_add(t[m][g], scale, sums.f[m][g]);
          }
        }
      }
      BS_UNROLL
      for (int m = 0; m < kRows; ++m) x[m] += kX;
      if (--left == 0) {
        left = w.run;
        scales += scale_bytes(w.scale);
        zeros += kLanes;
      }
    }
    sums.store();
  }

  static BS_INLINE I zero_of(const uint8_t* zeros) {
    return kZeros ? widen_bytes(zeros) : splat_i(kZeroCode);
  }

  template <int kRows, int kGroups, class Word>
  static BS_INLINE void add_products(F (&t)[kRows][kGroups], const uint8_t* const (&x)[kRows],
                                     int q, Word word) {
    I v[2][kGroups];
    BS_UNROLL
    for (int p = 0; p < 2; ++p) {
      BS_UNROLL
      for (int g = 0; g < kGroups; ++g) v[p][g] = word(g, p);
    }
    if constexpr (By::kQuads) {
      BS_UNROLL
      for (int k = 0; k < 4; ++k) {
        F f[kGroups];
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) f[g] = k < 2 ? first_of(v[k][g]) : second_of(v[k - 2][g]);
        BS_UNROLL
        for (int m = 0; m < kRows; ++m) {
          const F one = spread_f(x[m] + 16 * q + 4 * k);
          BS_UNROLL
          for (int g = 0; g < kGroups; ++g) t[m][g] = multiply_add(f[g], one, t[m][g]);
        }
      }
    } else {
#if defined(__AVX512BF16__)
      BS_UNROLL
      for (int p = 0; p < 2; ++p) {
        BS_UNROLL
        for (int m = 0; m < kRows; ++m) {
          const I two = spread_i(x[m] + 8 * q + 4 * p);
          BS_UNROLL
          for (int g = 0; g < kGroups; ++g) t[m][g] = dot_pairs(t[m][g], v[p][g], two);
        }
      }
#endif
    }
  }

  // The same of integers that become float32 one by one.
  template <int kRows, int kGroups, class Element>
  static BS_INLINE void add_integers(F (&t)[kRows][kGroups], const uint8_t* const (&x)[kRows],
                                     int q, Element element) {
    BS_UNROLL
    for (int k = 0; k < 4; ++k) {
      F f[kGroups];
      BS_UNROLL
      for (int g = 0; g < kGroups; ++g) f[g] = element(g, k);
      BS_UNROLL
      for (int m = 0; m < kRows; ++m) {
        const F one = spread_f(x[m] + 16 * q + 4 * k);
        BS_UNROLL
        for (int g = 0; g < kGroups; ++g) t[m][g] = multiply_add(f[g], one, t[m][g]);
      }
    }
  }

  static void expand(const Weights& w, size_t blocks, uint8_t* panel) {
    const Pairs<C> pairs;
    const uint8_t* scales = w.scales;
    const uint8_t* zeros = w.zeros;
    size_t left = w.left;
    for (size_t b = 0; b < blocks; ++b, panel += kPanel) {
      const uint8_t* codes = w.codes + b * code_bytes(C);
      const I zero = is_integer(C) ? zero_of(zeros) : zero_i();
      BS_UNROLL
      for (int i = 0; i < 16; ++i) store_i(panel + 64 * i, pairs(codes, i >> 1, i & 1, zero));
      store_f(panel + 1024, scale_of(w.scale, scales, 0));
      if (w.scale == ScaleKind::kE4m3) store_f(panel + 1088, scale_of(w.scale, scales, 1));
      if (--left == 0) {
        left = w.run;
        scales += scale_bytes(w.scale);
        zeros += kLanes;
      }
    }
  }
};
