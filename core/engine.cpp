#include "engine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "block_params.h"
#include "columns.h"
#include "cpu.h"
#include "float_env.h"
#include "range_ends.h"
#include "rows.h"
#include "sub_blocks.h"
#include "tiling.h"

namespace bs {

namespace {

enum class What : uint8_t { kFake, kCode, kDecode, kParams };

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
    const size_t out_bytes = size_t(g_.size()) * sizeof(float);
    stream_ = (what == What::kFake || what == What::kDecode) && job_.y_type == TensorType::kF32 &&
              g_.inner().y == 1 && out_bytes > last_level_cache();
    // Pieces begin at blocks where blocks divide them; then scale and code can be had in one go.
    const int64_t extent = g_.inner().extent;
    if (job.scales == Scales::kChosen && extent > 1 && g_.rows() == 1 && kPiece % extent == 0) {
      if (what == What::kFake) fused_fake_ = kernels_.fused_fake(job_.numbers);
      if (what == What::kCode) fused_code_ = kernels_.fused_code(job_.numbers);
    }
    if (what == What::kFake || what == What::kCode) {
      rows_.emplace(job_, what == What::kCode, kernels_, stream_);
      if (!rows_->found()) rows_.reset();
    }
    if (what == What::kFake && job.scales == Scales::kChosen && extent == 1) {
      const bool plain = job.x_type == TensorType::kF32 && g_.inner().x == 1 && g_.inner().y == 1;
      if (plain) columns_ = kernels_.columns(job_.numbers);
    }
    if (what == What::kDecode) {
      decode_ = kernels_.decode(job_.numbers);
      if (extent > 1 && extent % 8 == 0) packed_ = kernels_.decode_packed(job_.numbers);
    }
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
    if (job_.numbers.sub_block > 0) {
      run_sub_blocks(whole);
      return job_.params.tensor_scale;
    }
    const bool few = threads() > 1 && whole.count < 4 * threads();
    // `mse` sums a block in order, and the scales of `pass` have no stored form.
    const bool can = job_.numbers.rule != Rule::kMse && job_.numbers.nonfinite != Nonfinite::kPass;
    if (g_.size() == 0 || (few && can)) {  // blocks of no elements have scales all the same
      run_in_two_phases();
    } else if (columns_.row != nullptr) {
      run_columns(column_blocks(g_));
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

  void run_tiles(const Tiling& t, bool choose) {
    auto spaces = workspaces(t);
    parallel(t.count, [&](int task, int64_t first, int64_t last) {
      Workspace& w = *spaces[size_t(task)];
      Tile tile;
      for (int64_t i = first; i < last; ++i) {
        place(g_, t, i, tile);
        if (rows_) {
          run_rows(tile, w, [&](const Tile& part) { run_tile(part, w, true); });
        } else {
          run_tile(tile, w, choose);
        }
      }
    });
  }

  void run_tile(const Tile& tile, Workspace& w, bool choose) {
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

  template <class General>
  void run_rows(const Tile& tile, Workspace& w, General general) {
    auto* scales = static_cast<uint8_t*>(maker_.stored.scales);
    rows_->run(tile, {w.x, w.y, w.codes}, scales == nullptr ? nullptr : scales + tile.at, general,
               [&](float* from, unsigned char* to, size_t n) { store(from, to, n); });
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

  void run_columns(const Tiling& t) {
    auto spaces = workspaces(t);
    std::vector<ColumnWalk> walks(
        spaces.size(), ColumnWalk(job_, columns_, t, stream_ ? kernels_.stream : nullptr));
    parallel(t.count, [&](int task, int64_t first, int64_t last) {
      Workspace& w = *spaces[size_t(task)];
      walks[size_t(task)].run(first, last, [&](const Tile& tile) { run_tile(tile, w, true); });
    });
  }

  void run_sub_blocks(const Tiling& t) {
    auto spaces = workspaces(t);
    std::vector<std::unique_ptr<SubBlockWalk>> walks;
    for (size_t i = 0; i < spaces.size(); ++i) {
      walks.push_back(std::make_unique<SubBlockWalk>(job_, kernels_));
    }
    parallel(t.count, [&](int task, int64_t first, int64_t last) {
      auto general = [&](const Tile& tile) { walks[size_t(task)]->run(tile); };
      Tile tile;
      for (int64_t i = first; i < last; ++i) {
        place(g_, t, i, tile);
        rows_ ? run_rows(tile, *spaces[size_t(task)], general) : general(tile);
      }
    });
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
    if (job_.numbers.nonfinite == Nonfinite::kPass && fused_fake_ == nullptr) {
      copy_nonfinite(piece.x, piece.size, out);
    }
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

  void store(float* from, unsigned char* to, size_t n) {
    if (!job_.numbers.saturates) overflow_to_infinity(from, n, job_.y_type);
    if (stream_) {
      kernels_.stream(from, reinterpret_cast<float*>(to), n);
    } else {
      kernels_.store[int(job_.y_type)](from, to, g_.inner().y, n);
    }
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
        place(g_, t, i, tile);
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
  std::optional<RowWalk> rows_;
  ColumnKernels columns_{};
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
