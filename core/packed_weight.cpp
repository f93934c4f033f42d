#include "packed_weight.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "argument_error.h"
#include "block_params.h"
#include "half.h"
#include "kernels.h"

namespace bs {

namespace {

constexpr size_t kMostRun = 16;  // blocks: what a panel of an int8 kernel holds at least
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ScaleKind scale_kind_of(const WeightForm& form) {
  switch (form.numbers.scale) {
    case k_e8m0:
      return ScaleKind::kE8m0;
    case k_fp8_e4m3:
      return ScaleKind::kE4m3;
    default:
      break;
  }
  if (form.block_k == 0 || form.block_k >= form.k) return ScaleKind::kColumn;
  return form.numbers.scale == k_f32    ? ScaleKind::kF32
         : form.numbers.scale == k_bf16 ? ScaleKind::kBf16
                                        : ScaleKind::kF16;
}

// Blocks of 32 that share a scale.
size_t run_of(const WeightForm& form, ScaleKind kind) {
  const int64_t block = form.block_k;
  if (kind == ScaleKind::kColumn) return kMostRun;
  const bool halves = kind == ScaleKind::kE4m3;
  const bool whole = block == 0 || block >= form.k;
  if (!whole && block % 32 != 0 && !(halves && block == 16)) {
    refuse("block along K", block,
           halves ? "16 or a multiple of 32" : "a multiple of 32, or 0 for all of K");
  }
  if (halves && (whole || block <= 32)) return 1;
  const size_t blocks = whole ? kMostRun : size_t(block) / kBlockOfK;
  size_t run = std::min(blocks, kMostRun);
  while (blocks % run != 0) --run;
  return run;
}

size_t divided_up(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace

Code code_of(const Numbers& numbers) {
  const Format& element = numbers.element_format();
  switch (numbers.element) {
    case k_fp4_e2m1:
      return Code::kFp4;
    case k_fp6_e2m3:
      return Code::kE2m3;
    case k_fp6_e3m2:
      return Code::kE3m2;
    case k_fp8_e4m3:
      return Code::kE4m3;
    case k_fp8_e5m2:
      return Code::kE5m2;
    default:
      if (element.bits > 8) refuse("element", element.name, "one of at most 8 bits");
      return element.bits <= 4 ? Code::kInt4 : Code::kInt8;
  }
}

float stored_scale(const Numbers& numbers, const uint8_t* scales, size_t i) {
  float f;
  uint16_t h;
  switch (numbers.scale) {
    case k_f32:
      std::copy_n(scales + 4 * i, 4, reinterpret_cast<uint8_t*>(&f));
      return f;
    case k_e8m0:
      return scales[i] == kE8m0Nan ? kNan : power_of_two(int(scales[i]) - 127);
    case k_fp8_e4m3:
      return scales[i] == 0x7f ? kNan
             : scales[i] < 8   ? float(scales[i]) * 0x1p-9f
                               : float_of((uint32_t(scales[i]) << 20) + (120u << 23));
    default:
      std::copy_n(scales + 2 * i, 2, reinterpret_cast<uint8_t*>(&h));
      return numbers.scale == k_bf16 ? bfloat_to_float(h) : half_to_float(h);
  }
}

// Fills a PackedWeight, a group of columns at a time.
class Packer {
 public:
  Packer(PackedWeight& packed, const WeightForm& form, const Memory& codes,
         const Parameters& params, uint8_t* memory)
      : packed_(packed),
        form_(form),
        codes_(codes),
        params_(params),
        view_(packed.view_),
        codes_to_(memory),
        scales_to_(memory + (view_.scales - view_.codes)),
        zeros_to_(memory + (view_.zero_points - view_.codes)) {
    const Format& element = form.numbers.element_format();
    bits_ = element.stored_bits();
    const auto line = size_t(form.storage == Storage::kRowsOfN ? form.k : form.n);
    line_bytes_ = (line * size_t(bits_) + 7) / 8;
    const int64_t whole_n = std::max<int64_t>(form.n, 1), whole_k = std::max<int64_t>(form.k, 1);
    block_n_ = size_t(form.block_n == 0 ? whole_n : form.block_n);
    block_k_ = size_t(form.block_k == 0 ? whole_k : form.block_k);
    scales_n_ = divided_up(size_t(whole_n), block_n_);
    scales_k_ = divided_up(size_t(whole_k), block_k_);
    const bool is_unsigned = element.kind == Kind::kFixed && !element.is_signed;
    add_ = is_integer(view_.code) && !is_unsigned ? (view_.code == Code::kInt4 ? 8 : 128) : 0;
  }

  // Tasks do not throw: there is room for the codes of as many tasks as run.
  void groups(size_t first, size_t count) {
    std::vector<uint8_t> bytes(kLanes * view_.blocks * kBlockOfK);
    for (size_t g = first; g < std::min(first + count, view_.groups); ++g) group(g, bytes);
  }

  void group(size_t g, std::vector<uint8_t>& bytes) {
    std::fill(bytes.begin(), bytes.end(), uint8_t(add_));
    read(g, bytes.data());
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t n = g * kLanes + lane;
      scales(g, lane, bytes.data() + lane * view_.blocks * kBlockOfK, n < view_.n);
    }
    for (size_t b = 0; b < view_.blocks; ++b) {
      uint8_t* to = codes_to_ + (g * view_.blocks + b) * code_bytes(view_.code);
      block(bytes.data() + b * kBlockOfK, to);
    }
  }

  // The exponents of blocks that are not all 0, once every group is done.
  void exponents() {
    if (view_.scale != ScaleKind::kE8m0) return;
    int low = low_, high = high_;
    if (low > high) low = high = 127;
    packed_.view_.exponent_low = uint8_t(low);
    packed_.view_.exponent_high = uint8_t(high);
    const size_t count = view_.groups * runs() * 16;
    for (size_t i = 0; i < count; ++i) {
      if (scales_to_[i] == kE8m0Nan) scales_to_[i] = uint8_t(low);
    }
  }

 private:
  size_t runs() const { return divided_up(view_.blocks, view_.run); }

  // The codes of 16 columns, a row of all of K each; columns beyond N stay as they are.
  void read(size_t g, uint8_t* to) {
    const size_t pitch = view_.blocks * kBlockOfK;
    const size_t count = std::min(kLanes, view_.n - std::min(view_.n, g * kLanes));
    const auto unpack = kernels()->unpack;
    const auto k = size_t(form_.k);
    if (form_.storage == Storage::kRowsOfN) {
      for (size_t lane = 0; lane < count; ++lane) {
        uint8_t* row = to + lane * pitch;
        unpack(codes_.data + (g * kLanes + lane) * line_bytes_, k, bits_, row);
        normalise(row, k);
      }
      return;
    }
    for (size_t i = 0; i < k && count > 0; ++i) {
      uint8_t line[kLanes];
      unpack(codes_.data + i * line_bytes_ + g * kLanes * size_t(bits_) / 8, count, bits_, line);
      normalise(line, count);
      for (size_t lane = 0; lane < count; ++lane) to[lane * pitch + i] = line[lane];
    }
  }

  void normalise(uint8_t* codes, size_t count) const {
    if (!is_integer(view_.code)) return;
    if (view_.code == Code::kInt8) {
      // Signed ones of fewer than 8 bits are stored without their sign's copies.
      const int spare = bits_ < 8 && add_ != 0 ? 8 - bits_ : 0;
      for (size_t i = 0; i < count; ++i) {
        codes[i] = uint8_t(int(int8_t(uint8_t(codes[i] << spare))) >> spare) ^ uint8_t(add_);
      }
      return;
    }
    for (size_t i = 0; i < count; ++i) {
      const int code = codes[i] & ((1 << bits_) - 1);
      const int sign = add_ != 0 ? 1 << (bits_ - 1) : 0;
      codes[i] = uint8_t((code ^ sign) - sign + add_) & 15;
    }
  }

  size_t scale_index(size_t n, size_t k) const {
    const size_t i = n / block_n_, j = k / block_k_;
    return form_.storage == Storage::kRowsOfN ? i * scales_k_ + j : j * scales_n_ + i;
  }

  // All that goes with column `lane` of group g. What stands beyond N or K has scale 0 or codes 0.
  void scales(size_t g, size_t lane, const uint8_t* codes, bool inside) {
    float& column = packed_.columns_[g * kLanes + lane];
    column = view_.scale == ScaleKind::kE4m3 ? params_.tensor_scale : 1.0f;
    double sum = 0;
    const size_t step = scale_bytes(view_.scale);
    for (size_t r = 0; r < runs(); ++r) {
      const size_t from = r * view_.run * kBlockOfK;
      const size_t to = std::min(from + view_.run * kBlockOfK, view_.k);
      uint8_t* at = scales_to_ + (g * runs() + r) * step;
      int zero = zero_code();
      if (view_.zeros) {
        if (inside && params_.zero_points.data != nullptr && from < view_.k) {
          const auto* zeros = reinterpret_cast<const int32_t*>(params_.zero_points.data);
          zero = zeros[scale_index(g * kLanes + lane, from)] + add_;
        }
        zeros_to_[(g * runs() + r) * kLanes + lane] = uint8_t(zero);
      }
      const bool here = inside && from < view_.k;
      sum += one_scale(g * kLanes + lane, lane, codes, from, to, here, zero, at, column);
    }
    packed_.columns_[view_.groups * kLanes + g * kLanes + lane] = float(sum);
  }

  int zero_code() const {
    return view_.zeros ? 0 : view_.code == Code::kInt4 ? 8 : view_.code == Code::kInt8 ? 128 : 0;
  }

  // Writes the scale of elements [from, to) of column n; returns their sum times it.
  double one_scale(size_t n, size_t lane, const uint8_t* codes, size_t from, size_t to, bool here,
                   int zero, uint8_t* at, float& column) {
    const size_t index = here ? scale_index(n, from) : 0;
    const float scale = here ? stored_scale(form_.numbers, params_.scales.data, index) : 0.0f;
    double sum = 0;
    bool any = false;
    for (size_t i = from; i < to; ++i) {
      if (is_integer(view_.code)) {
        sum += int(codes[i]) - zero;
        any |= int(codes[i]) != zero;
      } else {
        any |= (codes[i] & magnitude_mask()) != 0;
        if (is_nan(codes[i]) && here) column = kNan;
      }
    }
    if (std::isnan(scale)) column = kNan;
    switch (view_.scale) {
      case ScaleKind::kColumn:
        if (from == 0) column *= here ? scale : 1.0f;
        return sum;
      case ScaleKind::kE8m0:
        return e8m0(here, any, index, at + lane), sum * double(scale);
      case ScaleKind::kE4m3: {
        const size_t next = from + kBlockOfK / 2;
        const size_t second = here && next < view_.k ? scale_index(n, next) : index;
        at[lane] = here ? finite(params_.scales.data[index], column) : 0;
        at[16 + lane] = here ? finite(params_.scales.data[second], column) : 0;
        return 0;
      }
      default: {
        const size_t size = view_.scale == ScaleKind::kF32 ? 4 : 2;
        if (here) std::copy_n(params_.scales.data + size * index, size, at + size * lane);
        return sum * double(scale);
      }
    }
  }

  static uint8_t finite(uint8_t scale, float& column) {
    if (scale != 0x7f) return scale;
    column = kNan;
    return 0;
  }

  // 255 stands for any for now: exponents() gives it one within the range.
  void e8m0(bool here, bool any, size_t index, uint8_t* at) {
    const uint8_t scale = here ? params_.scales.data[index] : uint8_t(kE8m0Nan);
    *at = any ? scale : uint8_t(kE8m0Nan);
    if (*at == kE8m0Nan) return;
    int seen = low_;
    while (scale < seen && !low_.compare_exchange_weak(seen, scale)) {
    }
    seen = high_;
    while (scale > seen && !high_.compare_exchange_weak(seen, scale)) {
    }
  }

  int magnitude_mask() const { return (1 << (form_.numbers.element_format().bits - 1)) - 1; }
  bool is_nan(uint8_t code) const {
    if (view_.code == Code::kE4m3) return (code & 0x7f) == 0x7f;
    return view_.code == Code::kE5m2 && (code & 0x7f) > 0x7c;
  }

  // One block of 16 rows that lie `pitch` apart (products.h, product_decode_*.h).
  void block(const uint8_t* codes, uint8_t* to) const {
    const size_t pitch = view_.blocks * kBlockOfK;
    const auto code = [&](size_t lane, size_t k) { return codes[lane * pitch + k]; };
    const size_t bytes = code_bytes(view_.code);
    for (size_t i = 0; i < bytes; ++i) {
      const size_t vector = i / 64, lane = i / 4 % kLanes, k = i % 4;
      if (bytes == 512) {
        to[i] = code(lane, 4 * vector + k);
      } else if (bytes == 256) {
        to[i] = uint8_t(code(lane, 4 * vector + k) | code(lane, 16 + 4 * vector + k) << 4);
      } else {
        const size_t half = vector / 3, third = vector % 3;
        const int fourth = code(lane, 16 * half + 12 + k) >> (2 * third) & 3;
        to[i] = uint8_t(code(lane, 16 * half + 4 * third + k) | fourth << 6);
      }
    }
  }

  PackedWeight& packed_;
  const WeightForm& form_;
  const Memory& codes_;
  const Parameters& params_;
  const WeightView& view_;
  uint8_t *codes_to_, *scales_to_, *zeros_to_;
  int bits_, add_;  // add_: what makes integers unsigned
  size_t line_bytes_, block_n_, block_k_, scales_n_, scales_k_;
  std::atomic<int> low_{kE8m0Nan}, high_{-1};
};

PackedWeight::PackedWeight(const WeightForm& form, const Memory& codes, const Parameters& params,
                           const Host& host)
    : numbers_(form.numbers) {
  const bool rows_of_n = form.storage == Storage::kRowsOfN;
  using Pair = std::vector<int64_t>;
  Parameters given = params;
  given.given = true;
  Plan(form.numbers, rows_of_n ? Pair{form.n, form.k} : Pair{form.k, form.n},
       rows_of_n ? Pair{form.block_n, form.block_k} : Pair{form.block_k, form.block_n})
      .check_stored(codes, given);

  const Format& element = form.numbers.element_format();
  view_.code = code_of(form.numbers);
  view_.scale = scale_kind_of(form);
  view_.zeros = form.numbers.zero_point || (is_integer(view_.code) && !element.is_signed);
  view_.n = size_t(form.n);
  view_.k = size_t(form.k);
  view_.groups = divided_up(view_.n, 2 * kLanes) * 2;
  view_.blocks = divided_up(view_.k, kBlockOfK);
  view_.run = run_of(form, view_.scale);
  if (view_.blocks <= 1) view_.run = 1;

  const size_t runs = divided_up(view_.blocks, view_.run);
  const size_t code_size = view_.groups * view_.blocks * code_bytes(view_.code);
  const size_t scale_size = view_.groups * runs * scale_bytes(view_.scale);
  const size_t zero_size = view_.zeros ? view_.groups * runs * kLanes : 0;
  constexpr size_t line = 64;
  memory_.resize(code_size + scale_size + zero_size + 2 * line);
  uint8_t* start = memory_.data() + (line - reinterpret_cast<uintptr_t>(memory_.data()) % line);
  columns_.resize(2 * view_.groups * kLanes);
  view_.codes = start;
  view_.scales = start + code_size;
  view_.zero_points = start + code_size + scale_size;
  view_.column_scale = columns_.data();
  view_.column_sum = columns_.data() + view_.groups * kLanes;

  Packer packer(*this, form, codes, given, start);
  constexpr size_t together = 8;  // groups a task
  host.run(
      host.context, int(divided_up(view_.groups, together)),
      [](void* argument, int index) {
        auto& own = *static_cast<Packer*>(argument);
        own.groups(size_t(index) * together, together);
      },
      &packer);
  packer.exponents();
}

size_t PackedWeight::bytes() const { return memory_.size() + columns_.size() * sizeof(float); }

}  // namespace bs
