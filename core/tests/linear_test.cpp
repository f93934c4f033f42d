// Linear layers against sums in float64: every kind of weight and of x, on every instruction set
// and host, bit for bit where the canonical dot product says so.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels.h"
#include "linear.h"

namespace {

using Doubles = std::vector<double>;
using Bytes = std::vector<unsigned char>;

long passed = 0;
long failed = 0;
std::mt19937 random_bits(7);

void check(bool good, const std::string& what) {
  ++(good ? passed : failed);
  if (!good && failed < 25) std::printf("FAILED %s\n", what.c_str());
}

bs::Numbers numbers(const char* element, const char* scale, bool zero_point = false) {
  bs::NumberNames names;
  names.element = element;
  names.scale = scale;
  const bool mx = names.scale == "e8m0", nv = names.scale == "fp8_e4m3";
  names.family = mx ? "mx" : nv ? "tensor_scaled" : "affine";
  names.rule = mx ? "floor" : nv ? "amax" : zero_point ? "asymmetric" : "symmetric";
  names.rounding = "half_even";
  names.nonfinite = "block";
  names.zero_point = zero_point;
  for (const bs::Format& format : bs::kFormats) {
    if (names.element == format.name && format.kind == bs::Kind::kFixed && !mx) {
      names.quant_min = format.min_code;
      names.quant_max = format.max_code;
    }
  }
  return bs::numbers_of(names);
}

// A matrix of some numbers: quantized from random values, with what it decodes to.
struct Matrix {
  bs::Numbers numbers;
  int64_t rows, columns, block;
  Bytes codes, scales;
  std::vector<int32_t> zeros;
  float tensor_scale = 1;
  std::vector<float> values;

  Matrix(const bs::Numbers& n, int64_t r, int64_t c, int64_t b)
      : numbers(n), rows(r), columns(c), block(b), values(size_t(r * c)) {
    std::normal_distribution<float> normal;
    std::vector<float> x(values.size());
    for (float& v : x) v = normal(random_bits) * std::exp(normal(random_bits));
    const bs::Plan plan = this->plan();
    codes.resize(plan.code_bytes());
    scales.resize(plan.scale_bytes());
    if (n.zero_point) zeros.resize(size_t(plan.scale_count()));
    const bs::Tensor of_x{{reinterpret_cast<unsigned char*>(x.data()), 4 * x.size()}, 0, {}};
    tensor_scale = plan.quantize(of_x, memory(codes), parameters(false), 0, bs::serial_host());
    decode();
  }
  bs::Plan plan() const { return bs::Plan(numbers, {rows, columns}, {1, block}); }
  static bs::Memory memory(const Bytes& b) {
    return {const_cast<unsigned char*>(b.data()), b.size()};
  }
  bs::Parameters parameters(bool given = true) const {
    auto* z = reinterpret_cast<unsigned char*>(const_cast<int32_t*>(zeros.data()));
    return {memory(scales), {z, 4 * zeros.size()}, tensor_scale, given, given};
  }
  void decode() {
    const bs::Tensor y{{reinterpret_cast<unsigned char*>(values.data()), 4 * values.size()}, 0, {}};
    plan().dequantize(memory(codes), y, parameters(), bs::serial_host());
  }
};

// Of one result: its value, and the sum of magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
};

Sum sum_of(const Matrix& x, const Matrix& w, int64_t m, int64_t n) {
  Sum sum;
  for (int64_t k = 0; k < x.columns; ++k) {
    const double p =
        double(x.values[size_t(m * x.columns + k)]) * double(w.values[size_t(n * w.columns + k)]);
    sum.value += p;
    sum.magnitude += std::fabs(p);
  }
  return sum;
}

// The canonical dot product: blocks are exact in float64, then float32 in ascending order.
float canonical(const Matrix& x, const Matrix& w, int64_t m, int64_t n) {
  float total = 0;
  for (int64_t from = 0; from < x.columns; from += 32) {
    double p = 0;
    for (int64_t k = from; k < std::min(from + 32, x.columns); ++k) {
      p +=
          double(x.values[size_t(m * x.columns + k)]) * double(w.values[size_t(n * w.columns + k)]);
    }
    total += float(p);
  }
  return total;
}

bs::PackedWeight packed(const Matrix& w, const bs::Host& host) {
  const bs::WeightForm form{w.numbers, bs::Storage::kRowsOfN, w.rows, w.columns, w.block, 1};
  return bs::PackedWeight(form, Matrix::memory(w.codes), w.parameters(), host);
}

std::vector<float> run(const bs::PackedWeight& w, const Matrix& x, bool coded, int64_t first,
                       int64_t count, const bs::Host& host) {
  std::vector<float> y(size_t(count * w.n()), -1);
  bs::LinearInput in{};
  Bytes raw(x.values.size() * 4);
  std::memcpy(raw.data(), x.values.data(), raw.size());
  if (coded) {
    in = {Matrix::memory(x.codes), 0, x.columns, &x.numbers, x.block, 1, true, x.parameters()};
  } else {
    const size_t row = size_t(x.columns) * 4;
    in.x = {raw.data() + size_t(first) * row, size_t(count) * row};
    in.stride = x.columns;
  }
  const bs::LinearOutput out{
      {reinterpret_cast<unsigned char*>(y.data()), y.size() * 4}, 0, w.n(), nullptr, {}};
  bs::linear(w, count, in, out, host);
  return y;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

void compare(const Matrix& w, const Matrix& x, bool coded, bool exact, const std::string& what) {
  const bs::PackedWeight weight = packed(w, bs::pool_host(2));
  const std::vector<float> y = run(weight, x, coded, 0, x.rows, bs::serial_host());
  // A rounding an element of a block, one a block; where x has a zero point the terms are larger.
  const double tolerance = double(34 + x.columns / 32) * 0x1p-24 * (x.numbers.zero_point ? 8 : 1);
  bool good = true;
  for (int64_t m = 0; m < x.rows; ++m) {
    for (int64_t n = 0; n < w.rows; ++n) {
      const float got = y[size_t(m * w.rows + n)];
      const Sum sum = sum_of(x, w, m, n);
      good &= exact ? got == canonical(x, w, m, n)
                    : std::fabs(double(got) - sum.value) <= tolerance * sum.magnitude;
    }
  }
  check(good, what);
  check(same(y, run(weight, x, coded, 0, x.rows, bs::pool_host(3))), what + ", threads");
  if (!coded) {
    for (int64_t m = 0; m < x.rows; m += 3) {
      const std::vector<float> row = run(weight, x, coded, m, 1, bs::serial_host());
      const std::vector<float> wanted(y.begin() + m * w.rows, y.begin() + (m + 1) * w.rows);
      check(same(row, wanted), what + ", a row alone");
    }
  }
}

struct Kind {
  const char *element, *scale;
  int64_t block;
  bool zero_point;
};
constexpr Kind kWeights[] = {
    {"fp4_e2m1", "e8m0", 32, false},     {"fp6_e2m3", "e8m0", 32, false},
    {"fp6_e3m2", "e8m0", 32, false},     {"mxint8", "e8m0", 32, false},
    {"fp8_e4m3", "e8m0", 32, false},     {"fp8_e5m2", "e8m0", 32, false},
    {"fp4_e2m1", "fp8_e4m3", 16, false}, {"int8", "f32", 0, false},
    {"uint8", "f32", 0, true},           {"int4", "f32", 32, false},
    {"int4", "f16", 128, false},         {"uint4", "bf16", 64, true},
};

void test_kinds(int64_t rows, int64_t n, int64_t k) {
  for (const Kind& kind : kWeights) {
    const Matrix w(numbers(kind.element, kind.scale, kind.zero_point), n, k, kind.block);
    const std::string name = std::string(bs::chosen_isa()) + ": " + kind.element + " x " +
                             kind.scale + ", " + std::to_string(rows) + " " + std::to_string(n) +
                             " " + std::to_string(k);
    for (const char* element : {"fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "mxint8", "fp8_e4m3"}) {
      const Matrix x(numbers(element, "e8m0"), rows, k, 32);
      const bool exact =
          kind.scale == std::string("e8m0") && element[2] != '8' && kind.element[2] != '8';
      compare(w, x, true, exact, name + " by " + element);
    }
    compare(w, Matrix(numbers("int8", "f32"), rows, k, 0), true, false, name + " by int8");
    compare(w, Matrix(numbers("uint8", "f32", true), rows, k, 0), true, false, name + " by uint8");
    compare(w, Matrix(numbers("mxint8", "e8m0"), rows, k, 32), false, false, name + " as it is");
  }
}

// Scales at the ends of their range, where kernels cannot put them together, and NaN.
void test_far_scales() {
  Matrix w(numbers("fp4_e2m1", "e8m0"), 37, 96, 32);
  Matrix x(numbers("mxint8", "e8m0"), 9, 96, 32);
  for (size_t i = 0; i < w.scales.size(); ++i) w.scales[i] = i % 5 ? 120 : 250;
  for (size_t i = 0; i < x.scales.size(); ++i) x.scales[i] = i % 3 ? 100 : 2;
  w.decode();
  x.decode();
  compare(w, x, true, true, std::string(bs::chosen_isa()) + ": far scales");
  x.scales[4] = 255;
  w.scales[3 * 5] = 255;
  const std::vector<float> y = run(packed(w, bs::serial_host()), x, true, 0, 9, bs::serial_host());
  bool good = true;
  for (size_t i = 0; i < y.size(); ++i) good &= std::isnan(y[i]) == (i / 37 == 1 || i % 37 == 5);
  check(good, "NaN scales");
}

// Many callers at once on one weight.
void test_callers() {
  const Matrix w(numbers("fp4_e2m1", "e8m0"), 200, 256, 32);
  const Matrix x(numbers("mxint8", "e8m0"), 40, 256, 32);
  const bs::PackedWeight weight = packed(w, bs::pool_host(2));
  const std::vector<float> wanted = run(weight, x, true, 0, 40, bs::serial_host());
  std::vector<int> good(4);
  std::vector<std::thread> callers;
  for (size_t i = 0; i < good.size(); ++i) {
    callers.emplace_back(
        [&, i] { good[i] = same(wanted, run(weight, x, true, 0, 40, bs::pool_host(2))); });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int each : good) check(each != 0, "callers at once");
}

}  // namespace

int main() {
  std::string isas = bs::available_isas();
  for (size_t from = 0; from < isas.size();) {
    const size_t to = std::min(isas.find(' ', from), isas.size());
    bs::choose_isa(isas.substr(from, to - from).c_str());
    test_kinds(1, 70, 64);
    test_kinds(7, 33, 100);
    test_kinds(29, 5, 31);
    test_far_scales();
    from = to + 1;
  }
  test_callers();
  std::printf("%ld passed, %ld failed\n", passed, failed);
  return failed != 0;
}
