// Bad input from C++: an ArgumentError that says which argument, never a crash.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "argument_error.h"
#include "kernels.h"
#include "plan.h"

namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

int passed = 0;
int failed = 0;

void refuses(const std::string& argument, const char* what, const std::function<void()>& body) {
  std::string said;
  try {
    body();
    said = "nothing was refused";
  } catch (const bs::ArgumentError& error) {
    said = error.what();
    if (error.argument() == argument && !error.allowed().empty() &&
        said.find(error.argument() + " = ") == 0) {
      ++passed;
      return;
    }
  } catch (const std::exception& error) {
    said = std::string("another exception, ") + error.what();
  }
  ++failed;
  std::printf("FAILED %s: %s\n", what, said.c_str());
}

void accepts(const char* what, const std::function<void()>& body) {
  try {
    body();
    ++passed;
  } catch (const std::exception& error) {
    ++failed;
    std::printf("FAILED %s: %s\n", what, error.what());
  }
}

bs::NumberNames mxfp4() {
  bs::NumberNames n;
  n.element = "fp4_e2m1", n.scale = "e8m0", n.family = "mx", n.rule = "floor";
  n.rounding = "half_even", n.nonfinite = "block";
  return n;
}

bs::NumberNames mx9() {
  bs::NumberNames n = mxfp4();
  n.element = "bfp16", n.int_low = -127, n.has_codes = false;
  n.sub_block = 2, n.sub_shift = 1;
  return n;
}

bs::NumberNames uint12() {
  bs::NumberNames n = mxfp4();
  n.element = "uint12", n.scale = "f32", n.family = "affine", n.rule = "asymmetric";
  n.zero_point = true, n.quant_min = 0, n.quant_max = 4095;
  return n;
}

bs::Plan plan(const bs::NumberNames& names, Ints shape, Ints block) {
  return bs::Plan(bs::numbers_of(names), std::move(shape), std::move(block));
}

template <class T>
bs::Memory memory(std::vector<T>& v) {
  return {reinterpret_cast<unsigned char*>(v.data()), v.size() * sizeof(T)};
}

void test_names() {
  const std::pair<const char*, std::string bs::NumberNames::*> fields[] = {
      {"element", &bs::NumberNames::element},   {"scale", &bs::NumberNames::scale},
      {"family", &bs::NumberNames::family},     {"rule", &bs::NumberNames::rule},
      {"rounding", &bs::NumberNames::rounding}, {"nonfinite", &bs::NumberNames::nonfinite},
  };
  for (const auto& [argument, field] : fields) {
    for (const char* value : {"", "fp3", "FLOOR", "a name that is much longer than any other"}) {
      bs::NumberNames n = mxfp4();
      n.*field = value;
      refuses(argument, argument, [&] { bs::numbers_of(n); });
    }
  }
  const auto with = [](const std::function<void(bs::NumberNames&)>& change) {
    return [change] {
      bs::NumberNames n = uint12();
      change(n);
      bs::numbers_of(n);
    };
  };
  accepts("uint12", with([](auto&) {}));
  refuses("quant_min", "empty range", with([](auto& n) { n.quant_max = 0; }));
  refuses("quant_min", "below the element", with([](auto& n) { n.quant_min = -1; }));
  refuses("quant_max", "above the element", with([](auto& n) { n.quant_max = 1 << 30; }));
  refuses("scale", "affine with e8m0", with([](auto& n) { n.scale = "e8m0"; }));
  refuses("scale", "affine with floor", with([](auto& n) { n.rule = "floor"; }));
  refuses("element", "a scale format as element", with([](auto& n) { n.element = "e8m0"; }));
  refuses("element", "a tensor format as element", with([](auto& n) { n.element = "f32"; }));
  refuses("int_low", "int_low", with([](auto& n) { n.int_low = -1000000000; }));
  refuses("clamps", "codes without clamps", with([](auto& n) { n.clamps = false; }));
  refuses("sub_block", "negative sub-blocks", with([](auto& n) { n.sub_block = -2; }));
  refuses("sub_shift", "shifts too far", with([](auto& n) { n.sub_shift = 9; }));
  refuses("sub_block", "sub-blocks of affine numbers", with([](auto& n) { n.sub_block = 2; }));
  refuses("int_low", "a code too low", [] {
    bs::NumberNames n = mx9();
    n.int_low = -129;
    bs::numbers_of(n);
  });
  refuses("nonfinite", "one-sided rounding up of what may be NaN", [] {
    bs::NumberNames n = mx9();
    n.rule = "even", n.int_low = -128, n.sub_block = 0;
    bs::numbers_of(n);
  });
  refuses("sub_block", "sub-blocks with codes", [] {
    bs::NumberNames n = mx9();
    n.has_codes = true;
    bs::numbers_of(n);
  });
  refuses("least_scale", "least_scale", with([](auto& n) { n.least_scale = 127; }));
  refuses("zero_scale", "zero_scale", with([](auto& n) { n.zero_scale = -1; }));
  refuses("zero_point", "zero point of a float", [] {
    bs::NumberNames n = mxfp4();
    n.zero_point = true;
    bs::numbers_of(n);
  });
}

void test_sub_blocks() {
  const bs::NumberNames n = mx9();
  refuses("block", "blocks that are no multiple", [&] { plan(n, {8, 8}, {1, 5}); });
  refuses("block", "blocks of two dimensions", [&] { plan(n, {8, 8}, {2, 4}); });
  for (const int64_t block : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{16}})
    plan(n, {8, 8}, {1, block});
}

void test_shapes() {
  const bs::NumberNames n = uint12();
  refuses("shape", "negative", [&] { plan(n, {-1}, {1}); });
  refuses("block", "negative block", [&] { plan(n, {4}, {-1}); });
  refuses("block", "a block too few", [&] { plan(n, {4, 4}, {1}); });
  refuses("shape", "65 dimensions", [&] { plan(n, Ints(65, 1), Ints(65, 1)); });
  refuses("shape", "2^64 elements", [&] { plan(n, {int64_t{1} << 32, int64_t{1} << 32}, {1, 1}); });
  refuses("shape", "2^63 - 1 elements", [&] { plan(n, {kMost}, {1}); });
  refuses("shape", "2^59 elements", [&] { plan(n, {int64_t{1} << 59}, {1}); });
  refuses("shape", "huge beside 0", [&] { plan(n, {0, kMost, kMost}, {1, 1, 1}); });
  accepts("2^59 - 1 elements", [&] { plan(n, {(int64_t{1} << 59) - 1}, {kMost}); });
  accepts("2^59 - 1 rows", [&] { plan(n, {(int64_t{1} << 59) - 1, 1}, {1, 1}); });
  accepts("2^58 beside 0", [&] { plan(n, {0, int64_t{1} << 58}, {0, 1}); });
  accepts("64 dimensions", [&] { plan(n, Ints(64, 1), Ints(64, kMost)); });
  accepts("no dimension", [&] { plan(n, {}, {}); });
}

void test_memory() {
  const bs::Host host = bs::serial_host();
  const bs::Plan p = plan(uint12(), {4, 6}, {1, 4});
  std::vector<float> x(24), y(24), scales(8, 1.0f);
  std::vector<int32_t> zeros(8);
  std::vector<uint16_t> codes(24);
  const bs::Parameters all{memory(scales), memory(zeros), 1, false, true};
  const bs::Parameters none{{nullptr, 0}, {nullptr, 0}, 1, false, false};
  const auto fake = [&](const bs::Tensor& from, const bs::Tensor& to,
                        const bs::Parameters& params) {
    return [&p, &host, from, to, params] { p.fake_quantize(from, to, params, 0, host); };
  };
  const auto of = [](bs::Memory m, Ints strides = {}, int type = 0) {
    return bs::Tensor{m, type, std::move(strides)};
  };
  const bs::Memory xm = memory(x), ym = memory(y);
  const auto shorter = [](bs::Memory m, size_t by) { return bs::Memory{m.data, m.bytes - by}; };
  const auto shifted = [](bs::Memory m, size_t by) {
    return bs::Memory{m.data + by, m.bytes - by};
  };

  accepts("what is right", fake(of(xm), of(ym), none));
  accepts("given", fake(of(xm), of(ym), all));
  refuses("x bytes", "x too short", fake(of(shorter(xm, 1)), of(ym), none));
  refuses("out bytes", "out too short", fake(of(xm), of(shorter(ym, 1)), none));
  refuses("x address", "no memory", fake(of({nullptr, 96}), of(ym), none));
  refuses("x address", "unaligned", fake(of(shifted({xm.data, 100}, 1)), of(ym), none));
  for (const int type : {-1, 3, 1 << 30})
    refuses("x type", "type", fake(of(xm, {}, type), of(ym), none));
  refuses("out type", "another type", fake(of(xm), of(ym, {}, 1), none));
  refuses("x strides", "a stride too few", fake(of(xm, {6}), of(ym), none));
  accepts("a step backward", fake(of(xm, {6, -1}), of(ym), none));
  accepts("steps backward", fake(of(xm, {-6, -1}), of(ym), none));
  refuses("x bytes", "steps too far back", fake(of(xm, {-7, 1}), of(ym), none));
  refuses("x stride", "the least stride", fake(of(xm, {INT64_MIN, 1}), of(ym), none));
  refuses("x bytes", "strides too far", fake(of(xm, {7, 1}), of(ym), none));
  refuses("x stride", "strides that overflow", fake(of(xm, {kMost, kMost}), of(ym), none));
  refuses("x stride", "products that overflow",
          fake(of(xm, {(int64_t{1} << 59), 1}), of(ym), none));
  refuses("out", "overlap", fake(of(xm), of(shifted({xm.data, 100}, 4)), none));
  refuses("out", "same memory, other strides", fake(of(xm, {6, 1}), of(xm, {1, 4}), none));

  bs::Parameters wrong = all;
  wrong.scales.bytes -= 4;
  refuses("scale bytes", "scales too short", fake(of(xm), of(ym), wrong));
  wrong.scales.bytes += 8;
  refuses("scale bytes", "scales too long", fake(of(xm), of(ym), wrong));
  wrong = all;
  wrong.scales.data += 1;
  refuses("scale address", "scales unaligned", fake(of(xm), of(ym), wrong));
  wrong = all;
  wrong.zero_points = {nullptr, 0};
  refuses("zero_point bytes", "no zero points", fake(of(xm), of(ym), wrong));

  const auto encode = [&](const bs::Memory& to, const bs::Parameters& params) {
    return [&p, &host, &of, xm, to, params] { p.quantize(of(xm), to, params, 0, host); };
  };
  const bs::Memory cm = memory(codes);
  accepts("codes", encode(cm, all));
  refuses("codes bytes", "codes too short", encode(shorter(cm, 2), all));
  refuses("codes address", "codes unaligned", encode({cm.data + 1, cm.bytes}, all));
  refuses("codes", "codes in x", encode({xm.data, cm.bytes}, all));
  refuses("scale bytes", "no room for scales", encode(cm, none));
  refuses("scale", "nothing to decode with", [&] { p.dequantize(cm, of(ym), none, host); });
  refuses("out", "codes in out", [&] { p.dequantize({ym.data, cm.bytes}, of(ym), all, host); });
  refuses("out bytes", "out too short", [&] { p.dequantize(cm, of(shorter(ym, 4)), all, host); });
  refuses("scale", "chosen and given", [&] { p.choose_params(of(xm), all, host); });
}

// Given parameters that are no parameters are refused, any codes and the edges of what is allowed
// are not.
void test_values() {
  const bs::Host host = bs::serial_host();
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = {1, -1, 3e38f, -3e38f, 1e-40f, infinity, nan, 0};
  std::vector<float> y(8);
  std::vector<uint16_t> codes(8, 0xffff);
  const auto all = [&](const bs::Plan& p, const bs::Parameters& params) {
    p.fake_quantize({memory(x), 0, {}}, {memory(y), 0, {}}, params, 0, host);
    const bs::Memory stored = {memory(codes).data, p.code_bytes()};
    p.quantize({memory(x), 0, {}}, stored, params, 0, host);
    p.dequantize(stored, {memory(y), 0, {}}, params, host);
    std::fill(codes.begin(), codes.end(), uint16_t{0xffff});
    p.dequantize(stored, {memory(y), 0, {}}, params, host);
  };
  const bs::Plan affine = plan(uint12(), {8}, {2});
  const auto with = [&](float scale, int32_t zero) {
    return [&, scale, zero] {
      std::vector<float> scales(4, 1.0f);
      std::vector<int32_t> zeros(4, 0);
      scales[2] = scale, zeros[3] = zero;
      all(affine, {memory(scales), memory(zeros), 1, false, true});
    };
  };
  for (const float scale : {0.0f, -0.0f, -1.0f, infinity, -infinity, nan})
    refuses("scale", "no scale", with(scale, 0));
  for (const float scale : {1e-45f, 1e-38f, 1.0f, std::numeric_limits<float>::max()})
    accepts("a scale", with(scale, 0));
  for (const int32_t zero :
       {-1, 4096, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()})
    refuses("zero_point", "no zero point", with(1, zero));
  for (const int32_t zero : {0, 4095}) accepts("a zero point", with(1, zero));

  bs::NumberNames n = mxfp4();
  n.family = "tensor_scaled", n.scale = "fp8_e4m3", n.rule = "amax";
  const bs::Plan nv = plan(n, {8}, {4});
  const auto nvfp4 = [&](uint8_t code, float t) {
    return [&, code, t] {
      std::vector<uint8_t> scales = {0x38, code};
      all(nv, {memory(scales), {nullptr, 0}, t, true, true});
    };
  };
  for (const uint8_t code : {0x00, 0x01, 0x7e, 0x7f}) accepts("a block scale", nvfp4(code, 1));
  for (const uint8_t code : {0x80, 0x81, 0xff}) refuses("scale", "a negative one", nvfp4(code, 1));
  for (const float t : {0.0f, -1.0f, infinity, nan})
    refuses("tensor_scale", "no tensor scale", nvfp4(0x38, t));
  accepts("the least tensor scale", nvfp4(0x38, 1e-45f));
}

void test_empty() {
  const bs::Plan p = plan(mxfp4(), {0, 5}, {1, 32});
  const bs::Host host = bs::serial_host();
  const bs::Parameters none{{nullptr, 0}, {nullptr, 0}, 1, false, false};
  const auto fake = [&](Ints strides) {
    return [&p, &host, &none, strides] {
      p.fake_quantize({{nullptr, 0}, 0, strides}, {{nullptr, 0}, 0, strides}, none, 0, host);
    };
  };
  accepts("nothing", fake({}));
  accepts("nothing, strided", fake({5, 1}));
  refuses("x strides", "nothing, a stride too few", fake({5}));
  accepts("nothing, a step backward", fake({5, -1}));
  accepts("nothing, wide strides", fake({int64_t{1} << 56, int64_t{1} << 56}));
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string isas = bs::available_isas();
  for (size_t at = 0; at < isas.size();) {
    const size_t end = std::min(isas.find(' ', at), isas.size());
    if (!bs::choose_isa(isas.substr(at, end - at).c_str())) ++failed;
    at = end + 1;
    test_memory();
    test_values();
    test_empty();
  }
  test_names();
  test_sub_blocks();
  test_shapes();
  if (bs::choose_isa("no such set") || bs::choose_isa("avx2 ")) ++failed;
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
