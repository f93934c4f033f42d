// The file of test vectors: tools/vectors.py describes it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan.h"

using Bytes = std::vector<unsigned char>;
using Ints = std::vector<int64_t>;

inline constexpr int kGiven = 1, kTensorScaleGiven = 2;  // bits of Case::given

struct Case {
  int index = 0;
  bs::NumberNames names;
  int type = 0, given = 0;
  uint64_t seed = 0;
  Ints shape, block;
  Bytes x, fake, codes, scales, zeros, tensor_scale, raw, decoded[3];

  int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

class Reader {
 public:
  explicit Reader(const char* path) {
    std::FILE* file = std::fopen(path, "rb");
    if (!file) throw std::runtime_error(std::string("cannot open ") + path);
    unsigned char buffer[1 << 16];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, file)) {
      data_.insert(data_.end(), buffer, buffer + n);
    }
    std::fclose(file);
    if (data_.size() < 8 || std::memcmp(take(8), "BSVECT01", 8) != 0) {
      throw std::runtime_error("not a file of vectors");
    }
  }

  template <class T>
  T value() {
    T result;
    std::memcpy(&result, take(sizeof(T)), sizeof(T));
    return result;
  }

  std::string text() {
    const size_t n = value<uint8_t>();
    return {reinterpret_cast<const char*>(take(n)), n};
  }

  Bytes array() {
    const size_t n = value<uint32_t>();
    const unsigned char* from = take(n);
    return Bytes(from, from + n);
  }

  Ints ints(size_t n) {
    Ints result(n);
    for (int64_t& i : result) i = value<int64_t>();
    return result;
  }

 private:
  const unsigned char* take(size_t n) {
    if (n > data_.size() - at_) throw std::runtime_error("the file of vectors ends too early");
    at_ += n;
    return data_.data() + (at_ - n);
  }

  Bytes data_;
  size_t at_ = 0;
};

inline bs::NumberNames read_names(Reader& file) {
  bs::NumberNames n;
  for (std::string* s : {&n.element, &n.scale, &n.family, &n.rule, &n.rounding, &n.nonfinite}) {
    *s = file.text();
  }
  const auto next = [&file] { return file.value<int32_t>(); };
  n.zero_point = next() != 0;
  n.quant_min = next();
  n.quant_max = next();
  for (bool* flag :
       {&n.saturates, &n.reciprocal, &n.nearly_half, &n.has_codes, &n.clamps, &n.flushes})
    *flag = next() != 0;
  for (int* number : {&n.least_scale, &n.zero_scale, &n.int_low, &n.sub_block, &n.sub_shift})
    *number = next();
  for (bool* flag : {&n.zero_of_zero, &n.zero_of_underflow, &n.zero_of_tiny}) *flag = next() != 0;
  return n;
}

inline Case read_case(Reader& file, const std::vector<bs::NumberNames>& table, int index) {
  Case c;
  c.index = index;
  c.names = table.at(file.value<uint32_t>());
  c.type = file.value<uint8_t>();
  const size_t rank = file.value<uint8_t>();
  c.given = file.value<uint8_t>();
  c.seed = file.value<uint64_t>();
  c.shape = file.ints(rank);
  c.block = file.ints(rank);
  for (Bytes* a : {&c.x, &c.fake, &c.codes, &c.scales, &c.zeros, &c.tensor_scale, &c.raw,
                   &c.decoded[0], &c.decoded[1], &c.decoded[2]}) {
    *a = file.array();
  }
  return c;
}

inline std::vector<Case> read_cases(const char* path) {
  Reader file(path);
  std::vector<bs::NumberNames> table(file.value<uint32_t>());
  for (bs::NumberNames& names : table) names = read_names(file);
  std::vector<Case> cases(file.value<uint32_t>());
  for (size_t i = 0; i < cases.size(); ++i) cases[i] = read_case(file, table, int(i));
  return cases;
}
