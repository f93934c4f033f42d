#include "linear.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "argument_error.h"
#include "block_params.h"
#include "float_env.h"
#include "half.h"
#include "kernels.h"
#include "linear_exact.h"
#include "linear_input.h"

namespace bs {

namespace {

// Rows of x that are multiplied by a panel of W in turn: they are to stay in the second cache.
constexpr size_t kRowsCache = 640 << 10;
constexpr size_t kLeastRows = 48;

size_t divided_up(size_t a, size_t b) { return (a + b - 1) / b; }

template <class Body>
void run(const Host& host, size_t tasks, Body& body) {
  host.run(
      host.context, int(tasks),
      [](void* argument, int index) {
        const FloatEnvironment exact;
        (*static_cast<Body*>(argument))(size_t(index));
      },
      &body);
}

void check_rows(const std::string& name, const Memory& memory, int type, int64_t stride,
                int64_t rows, int64_t columns) {
  if (type < 0 || type > 2) refuse(name + " type", int64_t{type}, "0 (f32), 1 (bf16) or 2 (f16)");
  if (rows == 0 || columns == 0) return;
  constexpr int64_t most = int64_t{1} << 56;
  if (stride < columns || stride > most / rows) {
    refuse(name + " stride", stride, "at least " + std::to_string(columns) + ", a row's length");
  }
  const int64_t size = kElementSize[type];
  const auto needed = size_t(((rows - 1) * stride + columns) * size);
  if (memory.data == nullptr) refuse(name + " address", int64_t{0}, "that of memory");
  if (memory.bytes < needed) {
    refuse(name + " bytes", int64_t(memory.bytes), "at least " + std::to_string(needed));
  }
  const auto address = reinterpret_cast<uintptr_t>(memory.data);
  if (address % size_t(size) != 0) {
    refuse(name + " address", int64_t(address), "a multiple of " + std::to_string(size));
  }
}

void check(const PackedWeight& weight, int64_t rows, const LinearInput& in,
           const LinearOutput& out) {
  if (rows < 0) refuse("rows", rows, "0 or more");
  if (products() == nullptr)
    refuse("BLOCKSCALE_ISA", "", std::string("one of ") + available_isas());
  if (!in.coded) check_rows("x", in.x, in.type, in.stride, rows, weight.k());
  check_rows("y", out.y, out.type, out.stride, rows, weight.n());
  if (out.bias != nullptr) {
    const size_t bytes = size_t(weight.n()) * sizeof(float);
    if (out.bias->bytes != bytes) {
      refuse("bias bytes", int64_t(out.bias->bytes), std::to_string(bytes) + ", N of float32");
    }
  }
  if (in.coded && in.numbers == nullptr) refuse("numbers", "none", "those of the codes");
  if (in.numbers != nullptr && in.numbers->element_format().bits > 8) {
    refuse("element of x", in.numbers->element_format().name, "one of at most 8 bits");
  }
  if (in.block < 0 || (in.block_rows != 0 && in.block_rows != 1)) {
    refuse("block of x", in.block, "0 or more along K, 0 or 1 along rows");
  }
}

// Items of the product: a range of rows and a range of groups, handed out one by one.
struct Work {
  const WeightView& w;
  const Input& x;
  const Finish& finish;
  Product product;
  size_t rows, most_rows, spans, span;
  uint8_t* scratch;
  size_t scratch_step;
  std::atomic<size_t> next{0};

  void operator()(size_t worker) {
    uint8_t* own = scratch + worker * scratch_step;
    const size_t items = divided_up(rows, most_rows) * spans;
    for (size_t item = next.fetch_add(1); item < items; item = next.fetch_add(1)) {
      const size_t row = item / spans * most_rows, group = item % spans * span;
      const Part part{group, std::min(span, w.groups - group), row,
                      std::min(most_rows, rows - row)};
      product(w, x.view(), part, own, finish);
    }
  }
};

void multiply(const PackedWeight& weight, const Input& x, size_t rows, const Finish& finish,
              const Host& host) {
  const WeightView& w = weight.view();
  const auto threads = size_t(std::max(host.threads, 1));
  const size_t fit = kRowsCache / std::max<size_t>(w.blocks * operand_bytes(x.operand()), 1);
  const size_t most_rows = std::min(rows, std::max(kLeastRows, fit / 6 * 6));
  const size_t parts = divided_up(rows, most_rows);
  // One thread: a span is all columns. More: so many that none is left with much at the end.
  const size_t wanted = threads == 1 ? 1 : divided_up(8 * threads, parts);
  const size_t span = std::max<size_t>(divided_up(divided_up(w.groups, wanted), 4) * 4, 4);
  const size_t spans = divided_up(w.groups, span);
  const size_t workers = std::min(threads, parts * spans);
  const size_t step = divided_up(scratch_bytes(most_rows), 64) * 64;
  Buffer scratch;
  scratch.resize(workers * step);
  Work work{w,
            x,
            finish,
            products()->find(w.code, w.zeros, x.operand()),
            rows,
            most_rows,
            spans,
            span,
            scratch.data(),
            step};
  run(host, workers, work);
}

// What is left out of the kernels: rows whose scales they cannot put together.
void multiply_slowly(const PackedWeight& weight, const Input& x, const Finish& finish,
                     const Host& host) {
  const WeightView& w = weight.view();
  auto body = [&](size_t g) {
    const size_t columns = std::min(kLanes, w.n - std::min(w.n, g * kLanes));
    for (const SlowRow& row : x.slow()) {
      float sums[kLanes];
      exact_sums(w, g, row.integers.data(), row.scales.data(), x.fraction(), sums);
      if (columns > 0) products()->finish(w, finish, row.index, g * kLanes, columns, sums);
    }
  };
  run(host, w.groups, body);
}

}  // namespace

void linear(const PackedWeight& weight, int64_t rows, const LinearInput& input,
            const LinearOutput& output, const Host& host) {
  check(weight, rows, input, output);
  if (weight.n() == 0 || rows == 0) return;
  Input x(weight, input, rows);
  const size_t size = size_t(kElementSize[output.type]);
  const size_t together = x.most_rows(kMostScratch);
  for (size_t row = 0; row < size_t(rows); row += together) {
    const size_t count = std::min(together, size_t(rows) - row);
    const Host& of_input = count * weight.view().k < 65536 ? serial_host() : host;
    x.prepare(row, count, of_input);
    const Finish finish{output.y.data + row * size_t(output.stride) * size,
                        TensorType(output.type),
                        size_t(output.stride) * size,
                        output.bias ? reinterpret_cast<const float*>(output.bias->data) : nullptr,
                        output.activation,
                        x.unit(),
                        x.row_scale(),
                        x.row_zero()};
    multiply(weight, x, count, finish,
             count * weight.view().k * weight.view().n < 1 << 18 ? serial_host() : host);
    if (!x.slow().empty()) multiply_slowly(weight, x, finish, host);
  }
}

}  // namespace bs
