#include "engine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <vector>

#include "block_params.h"
#include "cpu.h"
#include "float_env.h"

namespace bs {

namespace {

enum class What : uint8_t { kFake, kCode, kDecode, kParams };

// How the work is cut. A tile is one outer block (or some of its rows) by some columns; columns
// start at multiples of 8, so that packed codes of two tiles never share a byte.
struct Tiling {
  int64_t columns;     // a tile
  int64_t rows;        // a tile
  int64_t row_chunks;  // tiles of an outer block, downward
  int64_t column_chunks;
  int64_t count;
  size_t blocks;  // most blocks that a tile touches
};

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

// Tiles of whole blocks: their extremes are found and used while the data is in the nearest cache.
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

// Tiles for known parameters: any rows, any columns.
Tiling free_tiles(const Geometry& g) {
  const int64_t columns = g.inner().extent == 1 ? int64_t(kPiece) : 4 * int64_t(kPiece);
  return tiling(g, columns, std::max<int64_t>(1, 16384 / std::min(columns, g.inner().size + 1)));
}

constexpr uint32_t kFinite = kInfBits - 1;

size_t code_bytes(int64_t bits) { return size_t(bits / 8); }

class Engine {
 public:
  Engine(const Job& job, What what, const Host& host)
      : job_(job),
        what_(what),
        host_(host),
        g_(job_.geometry),
        kernels_(*kernels()),
        maker_{job_.numbers, job_.params, job_.x_type, kernels_} {
    if (job.numbers.family == Family::kAffine) counted_ = kFinite;
    if (job.numbers.nonfinite == Nonfinite::kPass) counted_ = kFinite;
    if (job.numbers.nonfinite == Nonfinite::kNanZero) counted_ = kInfBits;
    if (what == What::kFake) fake_ = kernels_.fake(job_.numbers);
    if (what == What::kCode) code_ = kernels_.code(job_.numbers);
    // Pieces begin at blocks where blocks divide them; then scale and code can be had in one go.
    const int64_t extent = g_.inner().extent;
    if (job.scales == Scales::kChosen && extent > 1 && g_.rows() == 1 && kPiece % extent == 0) {
      if (what == What::kFake) fused_fake_ = kernels_.fused_fake(job_.numbers);
      if (what == What::kCode) fused_code_ = kernels_.fused_code(job_.numbers);
    }
    if (what == What::kDecode) {
      decode_ = kernels_.decode(job_.numbers);
      if (extent > 1 && extent % 8 == 0) packed_ = kernels_.decode_packed(job_.numbers);
    }
    const size_t out_bytes = size_t(g_.size()) * sizeof(float);
    stream_ = (what == What::kFake || what == What::kDecode) && job_.y_type == TensorType::kF32 &&
              g_.inner().y == 1 && out_bytes > last_level_cache();
  }

  float run() {
    const bool chosen = job_.scales == Scales::kChosen;
    const bool stores = what_ == What::kCode || what_ == What::kParams;
    if (g_.size() == 0 && !(chosen && stores)) return job_.params.tensor_scale;
    if (chosen && job_.numbers.family == Family::kTensorScaled && !job_.tensor_scale_given) {
      find_tensor_scale();
    }
    maker_.stored = job_.params;
    if (!chosen) {
      run_tiles(free_tiles(g_), false);
      return job_.params.tensor_scale;
    }
    const Tiling whole = whole_blocks(g_);
    const bool few = threads() > 1 && whole.count < 4 * threads();
    // `mse` sums a block in order, and the scales of `pass` have no stored form.
    const bool can = job_.numbers.rule != Rule::kMse && job_.numbers.nonfinite != Nonfinite::kPass;
    if (g_.size() == 0 || (few && can)) {  // blocks of no elements have scales all the same
      run_in_two_phases();
    } else {
      run_tiles(whole, true);
    }
    return job_.params.tensor_scale;
  }

 private:
  struct Workspace {
    Workspace(const Numbers& numbers, size_t blocks) : params(numbers, blocks) {}
    ParamBuffer params;
    alignas(64) float x[kPiece];
    alignas(64) float y[kPiece];
    alignas(64) uint8_t codes[kPiece];
    alignas(64) uint16_t wide[kPiece];
  };

  // One tile's place.
  struct Tile {
    Geometry::Rows rows;
    int64_t first_row, row_count;
    int64_t column, columns;
    int64_t first_block;  // within the inner dimension
    size_t blocks;
    int64_t at;  // index of the first block in the stored parameters
  };

  int threads() const {
    const int64_t worth = g_.size() / 16384;
    return int(std::clamp<int64_t>(worth, 1, std::max(host_.threads, 1)));
  }

  // Calls body(first, last) on parts of [0, count), one a thread.
  template <class Body>
  void parallel(int64_t count, Body body) {
    const int tasks = int(std::min<int64_t>(threads(), std::max<int64_t>(count, 1)));
    struct Shared {
      Body* body;
      int64_t count;
      int tasks;
    } shared{&body, count, tasks};
    const Task task = [](void* argument, int i) {
      auto& s = *static_cast<Shared*>(argument);
      const FloatEnvironment environment;
      (*s.body)(i, s.count* i / s.tasks, s.count * (i + 1) / s.tasks);
    };
    if (tasks == 1) {
      task(&shared, 0);
    } else {
      host_.run(host_.context, tasks, task, &shared);
    }
  }

  // Memory is taken before any task starts: a task never throws.
  std::vector<std::unique_ptr<Workspace>> workspaces(const Tiling& t) {
    const int64_t n = std::min<int64_t>(threads(), std::max<int64_t>(t.count, 1));
    std::vector<std::unique_ptr<Workspace>> all;
    for (int64_t i = 0; i < n; ++i)
      all.push_back(std::make_unique<Workspace>(job_.numbers, t.blocks));
    return all;
  }

  void place(const Tiling& t, int64_t index, Tile& tile) const {
    const Dim& inner = g_.inner();
    const int64_t chunk = index % t.column_chunks;
    const int64_t down = index / t.column_chunks % t.row_chunks;
    const int64_t outer = index / t.column_chunks / t.row_chunks;
    g_.rows_of(outer, tile.rows);
    tile.first_row = std::min(down * t.rows, tile.rows.count);
    tile.row_count = std::min(t.rows, tile.rows.count - tile.first_row);
    tile.column = chunk * t.columns;
    tile.columns = std::min(t.columns, inner.size - tile.column);
    tile.first_block = tile.column / inner.extent;
    tile.blocks = size_t((tile.column + tile.columns - 1) / inner.extent - tile.first_block + 1);
    tile.at = outer * inner.blocks() + tile.first_block;
  }

  void run_tiles(const Tiling& t, bool choose) {
    auto spaces = workspaces(t);
    parallel(t.count, [&](int task, int64_t first, int64_t last) {
      Workspace& w = *spaces[size_t(task)];
      Tile tile;
      for (int64_t i = first; i < last; ++i) {
        place(t, i, tile);
        w.params.overflows = false;
        w.params.lifted = false;
        if (fused_fake_ != nullptr || fused_code_ != nullptr) {
          // the kernels choose
        } else if (choose) {
          choose_for(tile, w);
        } else {
          params_from_stored(maker_, w.params, tile.blocks, tile.at);
        }
        if (what_ != What::kParams) encode(tile, w);
      }
    });
  }

  void choose_for(const Tile& tile, Workspace& w) {
    w.params.clear_extremes(tile.blocks);
    find_extremes(tile, w, w.params.extremes());
    if (job_.numbers.rule == Rule::kMse) {
      mse_candidates(maker_, w.params, tile.blocks);
      for_pieces(tile, w, [&](Piece& piece, size_t block, const Offset&, int64_t) {
        kernels_.errors(piece, job_.numbers, w.params.candidates() + 3 * block,
                        w.params.sums() + 3 * block);
      });
      mse_choose(maker_, w.params, tile.blocks, tile.at);
    } else {
      params_from_extremes(maker_, w.params, tile.blocks, tile.at);
    }
  }

  void find_extremes(const Tile& tile, Workspace& w, Extremes to) {
    for_pieces(tile, w, [&](Piece& piece, size_t block, const Offset&, int64_t) {
      if (two_sided(job_.numbers)) {
        kernels_.extremes(piece, to.negative + block, to.amax + block);
      } else {
        kernels_.amax(piece, counted_, to.amax + block);
      }
    });
  }

  // Calls body(piece, block, row offset, column) for every piece of the tile; elements as float32.
  template <class Body>
  void for_pieces(const Tile& tile, Workspace& w, Body body) {
    const Dim& inner = g_.inner();
    Piece piece{};
    piece.across = inner.extent == 1 ? Across::kColumns : Across::kBlocks;
    piece.block = size_t(inner.extent);
    piece.seed = job_.seed;
    const bool direct = job_.x_type == TensorType::kF32 && inner.x == 1;
    const int size = kElementSize[int(job_.x_type)];
    const auto* base = static_cast<const unsigned char*>(job_.x);
    for (int64_t r = tile.first_row; r < tile.first_row + tile.row_count; ++r) {
      const Offset row = g_.row(tile.rows, r);
      for (int64_t c = tile.column; c < tile.column + tile.columns; c += int64_t(kPiece)) {
        piece.size = size_t(std::min<int64_t>(kPiece, tile.column + tile.columns - c));
        piece.skip = size_t(c % inner.extent);
        piece.index = uint64_t(row.index + c * inner.index);
        const auto block = size_t(c / inner.extent - tile.first_block);
        piece.params = w.params.params_from(block);
        if (what_ != What::kDecode) {
          const auto* from = base + (row.x + c * inner.x) * size;
          piece.x = direct ? reinterpret_cast<const float*>(from) : w.x;
          if (!direct) kernels_.load[int(job_.x_type)](from, inner.x, w.x, piece.size);
        }
        body(piece, block, row, c);
      }
    }
  }

  void encode(const Tile& tile, Workspace& w) {
    for_pieces(tile, w, [&](Piece& piece, size_t block, const Offset& row, int64_t column) {
      if (what_ == What::kFake) put_values(piece, row, column, w);
      if (what_ == What::kCode) put_codes(piece, row, column, tile.at + int64_t(block), w);
      if (what_ == What::kDecode) put_decoded(piece, row, column, w);
    });
  }

  bool writes_directly() const {
    return job_.y_type == TensorType::kF32 && g_.inner().y == 1 && !stream_ && job_.x != job_.y;
  }

  unsigned char* output(const Offset& row, int64_t column) const {
    const int64_t at = row.y + column * g_.inner().y;
    return static_cast<unsigned char*>(job_.y) + at * kElementSize[int(job_.y_type)];
  }

  void put_values(const Piece& piece, const Offset& row, int64_t column, Workspace& w) {
    unsigned char* to = output(row, column);
    float* out = writes_directly() ? reinterpret_cast<float*>(to) : w.y;
    if (fused_fake_ != nullptr) {
      fused_fake_(piece, job_.numbers, out);
    } else if (w.params.lifted) {
      fake_lifted(piece, out, w);
    } else {
      fake_(piece, job_.numbers, out);
    }
    if (job_.numbers.nonfinite == Nonfinite::kPass) copy_nonfinite(piece.x, piece.size, out);
    if (w.params.overflows && job_.numbers.saturates) saturate(out, piece.size);
    if (!writes_directly()) store(w.y, to, piece.size);
  }

  // Blocks whose 1 / scale overflows: their elements are multiplied first, their results divided.
  void fake_lifted(Piece piece, float* out, Workspace& w) {
    const float* lift = w.params.lift() + (piece.params.factor - w.params.params().factor);
    const size_t columns = piece.across == Across::kColumns;
    auto of = [&](size_t i) { return columns ? lift[i] : lift[(i + piece.skip) / piece.block]; };
    for (size_t i = 0; i < piece.size; ++i) w.x[i] = piece.x[i] * of(i);
    const float* original = piece.x;
    piece.x = w.x;
    fake_(piece, job_.numbers, w.y);
    for (size_t i = 0; i < piece.size; ++i) out[i] = w.y[i] / of(i);
    if (original == w.x) {  // restore what copy_nonfinite looks at; NaN and Inf were not changed
      for (size_t i = 0; i < piece.size; ++i) w.x[i] /= of(i);
    }
  }

  static void copy_nonfinite(const float* x, size_t n, float* y) {
    for (size_t i = 0; i < n; ++i) y[i] = (bits_of(x[i]) & kMagnitude) >= kInfBits ? x[i] : y[i];
  }

  static void saturate(float* y, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      y[i] = y[i] > kFloatMax ? kFloatMax : y[i] < -kFloatMax ? -kFloatMax : y[i];
    }
  }

  void store(float* from, unsigned char* to, size_t n) {
    if (!job_.numbers.saturates) overflow_to_infinity(from, n);
    if (stream_) {
      kernels_.stream(from, reinterpret_cast<float*>(to), n);
    } else {
      kernels_.store[int(job_.y_type)](from, to, g_.inner().y, n);
    }
  }

  // What rounds to beyond the output's range, as the ordinary conversion does: `store` would
  // saturate.
  void overflow_to_infinity(float* y, size_t n) const {
    const float least[] = {float_of(kInfBits), 0x1.ffp127f, 65520.0f};
    const float limit = least[int(job_.y_type)];
    const float infinity = float_of(kInfBits);
    for (size_t i = 0; i < n; ++i)
      y[i] = y[i] >= limit ? infinity : y[i] <= -limit ? -infinity : y[i];
  }

  void put_codes(const Piece& piece, const Offset& row, int64_t column, int64_t block,
                 Workspace& w) {
    const int bits = job_.numbers.element_format().stored_bits();
    unsigned char* to = static_cast<unsigned char*>(job_.y) + code_bytes(row.y + column * bits);
    if (fused_code_ != nullptr) {
      auto* scales = static_cast<uint8_t*>(maker_.stored.scales) + block;
      fused_code_(piece, job_.numbers, bits == 8 ? to : w.codes, scales);
      if (bits < 8) kernels_.pack(w.codes, piece.size, bits, to);
    } else if (bits == 16) {
      code_(piece, job_.numbers, nullptr, reinterpret_cast<uint16_t*>(to));
    } else if (bits == 8) {
      code_(piece, job_.numbers, to, nullptr);
    } else {
      code_(piece, job_.numbers, w.codes, nullptr);
      kernels_.pack(w.codes, piece.size, bits, to);
    }
  }

  void put_decoded(const Piece& piece, const Offset& row, int64_t column, Workspace& w) {
    const int bits = job_.numbers.element_format().stored_bits();
    const auto* from =
        static_cast<const unsigned char*>(job_.x) + code_bytes(row.x + column * bits);
    unsigned char* to = output(row, column);
    float* out = writes_directly() ? reinterpret_cast<float*>(to) : w.y;
    if (packed_ != nullptr) {
      packed_(piece, job_.numbers, from, out);
    } else if (bits < 8) {
      kernels_.unpack(from, piece.size, bits, w.codes);
      decode_(piece, job_.numbers, w.codes, nullptr, out);
    } else {
      decode_(piece, job_.numbers, from, reinterpret_cast<const uint16_t*>(from), out);
    }
    if (!writes_directly()) store(w.y, to, piece.size);
  }

  // Few large blocks: extremes first, by all threads; then parameters; then tiles of any form.
  void run_in_two_phases() {
    const auto blocks = size_t(g_.block_count());
    ParamBuffer all(job_.numbers, blocks);
    all.clear_extremes(blocks);
    merge_extremes(all.extremes(), counted_, false);
    std::vector<unsigned char> scales;
    std::vector<int32_t> zeros;
    if (job_.params.scales == nullptr) {
      scales.resize(blocks * scale_size(job_.numbers));
      maker_.stored.scales = scales.data();
    }
    if (job_.params.zero_points == nullptr && job_.numbers.zero_point) {
      zeros.resize(blocks);
      maker_.stored.zero_points = zeros.data();
    }
    const FloatEnvironment environment;
    params_from_extremes(maker_, all, blocks, 0);
    if (what_ != What::kParams && g_.size() > 0) run_tiles(free_tiles(g_), false);
  }

  // Extremes of all blocks, or of the whole tensor as if it were one (`flat`).
  void merge_extremes(Extremes to, uint32_t counted, bool flat) {
    const Tiling t = free_tiles(g_);
    if (g_.size() == 0) return;
    auto spaces = workspaces(t);
    parallel(t.count, [&](int task, int64_t first, int64_t last) {
      Workspace& w = *spaces[size_t(task)];
      Tile tile;
      for (int64_t i = first; i < last; ++i) {
        place(t, i, tile);
        w.params.clear_extremes(tile.blocks);
        const Extremes own = w.params.extremes();
        for_pieces(tile, w, [&](Piece& piece, size_t block, const Offset&, int64_t) {
          if (two_sided(job_.numbers)) {
            kernels_.extremes(piece, own.negative + block, own.amax + block);
          } else {
            kernels_.amax(piece, counted, own.amax + block);
          }
        });
        for (size_t b = 0; b < tile.blocks; ++b) {
          const size_t at = flat ? 0 : size_t(tile.at) + b;
          raise(to.amax[at], own.amax[b]);
          if (to.negative != nullptr) raise(to.negative[at], own.negative[b]);
        }
      }
    });
  }

  static void raise(uint32_t& target, uint32_t value) {
    std::atomic_ref<uint32_t> shared(target);
    uint32_t seen = shared.load(std::memory_order_relaxed);
    while (seen < value && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }

  void find_tensor_scale() {
    uint32_t amax = 0;
    merge_extremes({&amax, nullptr}, kFinite, true);
    const FloatEnvironment environment;
    job_.params.tensor_scale = tensor_scale_of(amax, job_.numbers);
  }

  Job job_;
  What what_;
  Host host_;
  const Geometry& g_;
  const Kernels& kernels_;
  Maker maker_;
  FakeKernel fake_ = nullptr;
  CodeKernel code_ = nullptr;
  FusedFakeKernel fused_fake_ = nullptr;
  FusedCodeKernel fused_code_ = nullptr;
  DecodeKernel decode_ = nullptr;
  PackedKernel packed_ = nullptr;
  uint32_t counted_ = kMagnitude;  // larger magnitudes do not count for the scale
  bool stream_ = false;
};

}  // namespace

void fake_quantize(Job job, const Host& host) {
  job.y_type = job.x_type;
  Engine(job, What::kFake, host).run();
}

float quantize(Job job, const Host& host) { return Engine(job, What::kCode, host).run(); }

float choose_params(Job job, const Host& host) { return Engine(job, What::kParams, host).run(); }

void dequantize(Job job, const Host& host) {
  job.scales = Scales::kGiven;
  Engine(job, What::kDecode, host).run();
}

}  // namespace bs
