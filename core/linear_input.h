// x of a linear layer on its way to the kernels: quantized, decoded or as it is, in the records of
// their Operand.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "linear.h"

namespace bs {

// Memory from a multiple of 64 bytes on, not cleared.
class Buffer {
 public:
  uint8_t* data() const { return start_; }
  void resize(size_t bytes) {
    if (bytes <= size_) return;
    memory_ = std::make_unique_for_overwrite<uint8_t[]>(bytes + 64);
    start_ = memory_.get() + (64 - reinterpret_cast<uintptr_t>(memory_.get()) % 64);
    size_ = bytes;
  }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  uint8_t* start_ = nullptr;
  size_t size_ = 0;
};

struct SlowRow {
  size_t index;
  std::vector<int16_t> integers;  // of all blocks
  std::vector<uint8_t> scales;
};

class Input {
 public:
  // What goes with the weight is decided here, for all rows.
  Input(const PackedWeight& weight, const LinearInput& input, int64_t rows);

  Operand operand() const { return operand_; }
  // Rows that may be prepared at once.
  size_t most_rows(size_t bytes) const;
  // Rows [first, first + count) of x.
  void prepare(size_t first, size_t count, const Host& host);

  XView view() const { return view_; }
  const float* row_scale() const { return scaled_ ? row_scale_.data() : nullptr; }
  const float* row_zero() const { return zeros_ ? row_zero_.data() : nullptr; }
  float unit() const { return unit_; }
  int fraction() const { return fraction_; }
  const std::vector<SlowRow>& slow() const { return slow_; }

 private:
  Operand choose_operand() const;
  float choose_unit() const;
  bool exact() const { return operand_ == Operand::kExact || operand_ == Operand::kExactWide; }
  void quantize(size_t first, size_t count, const Host& host);
  void decode(size_t first, size_t count, const Host& host);
  void prepare_row(size_t first, size_t row);
  void exact_row(const uint8_t* codes, size_t first, size_t row, uint8_t* to);
  void int8_row(const uint8_t* codes, size_t first, size_t row, uint8_t* to);
  void slow_row(const uint8_t* codes, const uint8_t* scales, size_t row);
  const uint8_t* codes(size_t first, size_t row) const;
  bool blank(const uint8_t* codes, size_t block) const;
  Plan plan(size_t count) const;
  Parameters stored(size_t first, size_t count) const;

  const WeightView& w_;
  const Numbers& w_numbers_;
  const LinearInput& in_;
  const size_t rows_, k_;
  const Operand operand_;
  const float unit_;
  float tensor_scale_;
  int fraction_ = 0;
  Code code_ = Code::kInt8;  // of x's codes
  bool scaled_ = false, zeros_ = false;

  XView view_{};
  Buffer records_, values_;
  std::vector<float> row_scale_, row_zero_;
  std::mutex lock_;  // of the slow rows
  std::vector<SlowRow> slow_;
  // Of quantized rows: packed codes, and the same a byte each.
  Buffer codes_, scales_, unpacked_;
  std::vector<int32_t> zero_points_;
  size_t code_bytes_ = 0, scale_count_ = 0;  // a row
};

}  // namespace bs
