// The codec against vectors of the reference (tools/vectors.py), bit for bit: every instruction set
// of this machine, every host, contiguous, strided and in place, whatever the caller's
// floating-point mode.
#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "plan.h"
#include "vectors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int kShown = 25;
constexpr unsigned char kCanary = 0xa5;
constexpr int kCode = -1;  // in place of a tensor type: bytes that must be equal
long passed = 0;
long failed = 0;

std::string shown(const Ints& values) {
  std::ostringstream text;
  for (size_t i = 0; i < values.size(); ++i) text << (i ? "," : "[") << values[i];
  return text.str() + (values.empty() ? "[]" : "]");
}

// Strides.

// Strides in elements with gaps, dimensions in another order: none where `form` is 0.
Ints strides_of(const Ints& shape, int form) {
  if (form == 0) return {};
  Ints strides(shape.size());
  int64_t step = form;
  for (size_t i = 0; i < shape.size(); ++i) {
    const size_t dim = (i + size_t(form)) % shape.size();
    strides[dim] = step;
    step = step * std::max<int64_t>(shape[dim], 1) + (form - 1) * 3;
  }
  return strides;
}

// Contiguous elements laid out with strides; the gaps hold canaries.
Bytes scattered(const Bytes& from, const Ints& shape, const Ints& strides, int type) {
  if (strides.empty() || from.empty()) return from;
  const auto size = size_t(bs::kElementSize[type]);
  int64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) last += strides[i] * (shape[i] - 1);
  Bytes to((size_t(last) + 1) * size, kCanary);
  Ints at(shape.size());
  for (size_t i = 0; i < from.size(); i += size) {
    int64_t offset = 0;
    for (size_t d = 0; d < shape.size(); ++d) offset += at[d] * strides[d];
    std::copy_n(from.begin() + ptrdiff_t(i), size, to.begin() + offset * ptrdiff_t(size));
    for (size_t d = shape.size(); d-- > 0 && ++at[d] == shape[d];) at[d] = 0;
  }
  return to;
}

// Comparing.

bool is_nan(uint32_t bits, int type) {
  constexpr uint32_t kMagnitudes[] = {0x7fffffff, 0x7fff, 0x7fff};
  constexpr uint32_t kInfinities[] = {0x7f800000, 0x7f80, 0x7c00};
  return (bits & kMagnitudes[type]) > kInfinities[type];
}

// Index of the first element that differs (any NaN equals any other), or -1.
ptrdiff_t difference(const Bytes& wanted, const Bytes& got, int type) {
  if (wanted.size() != got.size()) return 0;
  if (wanted == got) return -1;
  const size_t size = type == kCode ? 1 : size_t(bs::kElementSize[type]);
  for (size_t i = 0; i < wanted.size(); i += size) {
    uint32_t a = 0, b = 0;
    std::memcpy(&a, wanted.data() + i, size);
    std::memcpy(&b, got.data() + i, size);
    const bool equal = a == b || (type != kCode && is_nan(a, type) && is_nan(b, type));
    if (!equal) return ptrdiff_t(i / size);
  }
  return -1;
}

void report(const Case& c, const std::string& what) {
  if (++failed > kShown) return;
  const bs::NumberNames& n = c.names;
  std::printf(
      "FAILED case %d: %s; %s x %s, %s, %s, %s, zero point %d, %d..%d, shape %s block %s type %d\n",
      c.index, what.c_str(), n.element.c_str(), n.scale.c_str(), n.rule.c_str(), n.rounding.c_str(),
      n.nonfinite.c_str(), n.zero_point, n.quant_min, n.quant_max, shown(c.shape).c_str(),
      shown(c.block).c_str(), c.type);
}

// The caller's floating-point mode.

// Rounding upward, subnormals flushed: what a caller may have set, and must find again.
class HostileMode {
 public:
  HostileMode() : rounding_(std::fegetround()) {
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    _mm_setcsr(saved_ | 0x8040);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | uint64_t{1} << 24));
#endif
  }
  ~HostileMode() {
#if defined(__x86_64__)
    _mm_setcsr(unsigned(saved_));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(saved_));
#endif
    std::fesetround(rounding_);
  }
  bool kept() const {
    uint64_t mode = saved_;
#if defined(__x86_64__)
    mode = _mm_getcsr();
    if ((mode & 0x8040) != 0x8040) return false;
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    if ((mode >> 24 & 1) == 0) return false;
#endif
    return std::fegetround() == FE_UPWARD;
  }

 private:
  int rounding_;
  uint64_t saved_ = 0;
};

// One case.

class Run {
 public:
  Run(const Case& c, const bs::Host& host, std::string where)
      : c_(c),
        host_(host),
        where_(std::move(where)),
        plan_(bs::numbers_of(c.names), c.shape, c.block) {}

  void all() {
    for (const auto& [in, out] : {std::pair{0, 0}, {1, 0}, {0, 1}, {2, 1}, {1, 2}}) fake(in, out);
    for (const int form : {0, 1, 2}) fake_in_place(form);
    if (!c_.names.has_codes) return;
    for (const int form : {0, 1, 2}) codes(form);
    if (!(c_.given & kGiven)) chosen();
    for (const int type : {0, 1, 2}) {
      for (const int form : {0, 1, 2}) decode(type, form);
    }
  }

 private:
  static bs::Memory memory(Bytes& b) { return {b.data(), b.size()}; }
  static bs::Memory memory(const Bytes& b) {
    return {const_cast<unsigned char*>(b.data()), b.size()};
  }

  float tensor_scale() const {
    float t = 1;
    if (!c_.tensor_scale.empty()) std::memcpy(&t, c_.tensor_scale.data(), sizeof t);
    return t;
  }

  // The parameters of the case, to be read.
  bs::Parameters given(bool all) const {
    const bool known = all || c_.given != 0;
    return {memory(c_.scales), memory(c_.zeros), known ? tensor_scale() : 1.0f, known,
            all || (c_.given & kGiven) != 0};
  }

  template <class Body>
  void guarded(const char* what, Body body) {
    try {
      const HostileMode mode;
      body();
      if (!mode.kept()) fail(what, " changed the floating-point mode");
    } catch (const std::exception& error) {
      fail(what, std::string(" threw ") + error.what());
    }
  }

  void fail(const char* what, const std::string& why) { report(c_, where_ + ", " + what + why); }

  void check(const char* what, int in, int out, const Bytes& wanted, const Bytes& got, int type) {
    const ptrdiff_t at = difference(wanted, got, type);
    if (at < 0) {
      ++passed;
    } else {
      fail(what, " in form " + std::to_string(in) + " to " + std::to_string(out) + " differs at " +
                     std::to_string(at));
    }
  }

  void fake(int in, int out) {
    guarded("fake_quantize", [&] {
      const Ints from = strides_of(c_.shape, in), to = strides_of(c_.shape, out);
      const Bytes x = scattered(c_.x, c_.shape, from, c_.type);
      const Bytes wanted = scattered(c_.fake, c_.shape, to, c_.type);
      Bytes y(wanted.size(), kCanary);
      plan_.fake_quantize({memory(x), c_.type, from}, {memory(y), c_.type, to}, given(false),
                          c_.seed, host_);
      check("fake_quantize", in, out, wanted, y, c_.type);
      if (c_.names.has_codes) {  // with what it has chosen, given
        std::fill(y.begin(), y.end(), kCanary);
        plan_.fake_quantize({memory(x), c_.type, from}, {memory(y), c_.type, to}, given(true),
                            c_.seed, host_);
        check("fake_quantize with given scales", in, out, wanted, y, c_.type);
      }
    });
  }

  void fake_in_place(int form) {
    guarded("fake_quantize in place", [&] {
      const Ints strides = strides_of(c_.shape, form);
      Bytes x = scattered(c_.x, c_.shape, strides, c_.type);
      const bs::Tensor tensor{memory(x), c_.type, strides};
      plan_.fake_quantize(tensor, tensor, given(false), c_.seed, host_);
      check("fake_quantize in place", form, form, scattered(c_.fake, c_.shape, strides, c_.type), x,
            c_.type);
    });
  }

  void codes(int form) {
    guarded("quantize", [&] {
      const Ints from = strides_of(c_.shape, form);
      const Bytes x = scattered(c_.x, c_.shape, from, c_.type);
      Bytes y(c_.codes.size(), kCanary);
      Bytes scales(c_.scales.size(), kCanary), zeros(c_.zeros.size(), kCanary);
      bs::Parameters params = given(false);
      if (!params.given) params.scales = memory(scales), params.zero_points = memory(zeros);
      const float t = plan_.quantize({memory(x), c_.type, from}, memory(y), params, c_.seed, host_);
      check("quantize: codes", form, 0, c_.codes, y, kCode);
      if (!params.given) check_params("quantize", form, scales, zeros, t);
    });
  }

  void chosen() {
    guarded("choose_params", [&] {
      Bytes scales(c_.scales.size(), kCanary), zeros(c_.zeros.size(), kCanary);
      bs::Parameters params = given(false);
      params.scales = memory(scales), params.zero_points = memory(zeros);
      const float t = plan_.choose_params({memory(c_.x), c_.type, {}}, params, host_);
      check_params("choose_params", 0, scales, zeros, t);
    });
  }

  void check_params(const char* what, int form, const Bytes& scales, const Bytes& zeros, float t) {
    check((std::string(what) + ": scales").c_str(), form, 0, c_.scales, scales, kCode);
    check((std::string(what) + ": zero points").c_str(), form, 0, c_.zeros, zeros, kCode);
    const float wanted = tensor_scale();
    if (std::memcmp(&t, &wanted, sizeof t) != 0) fail(what, ": tensor scale");
  }

  void decode(int type, int form) {
    guarded("dequantize", [&] {
      const Ints to = strides_of(c_.shape, form);
      const Bytes wanted = scattered(c_.decoded[type], c_.shape, to, type);
      Bytes y(wanted.size(), kCanary);
      plan_.dequantize(memory(c_.raw), {memory(y), type, to}, given(true), host_);
      check("dequantize", 0, form, wanted, y, type);
    });
  }

  const Case& c_;
  const bs::Host& host_;
  std::string where_;
  bs::Plan plan_;
};

// So many copies along a new first dimension that several threads are used.
Case stretched(const Case& c) {
  Case large = c;
  const auto copies = size_t(60000 / std::max<int64_t>(c.size(), 1) + 1);
  large.shape.insert(large.shape.begin(), int64_t(copies));
  large.block.insert(large.block.begin(), 1);
  for (Bytes* a : {&large.x, &large.fake, &large.codes, &large.scales, &large.zeros, &large.raw,
                   &large.decoded[0], &large.decoded[1], &large.decoded[2]}) {
    const Bytes one = *a;
    a->reserve(one.size() * copies);
    for (size_t i = 1; i < copies; ++i) a->insert(a->end(), one.begin(), one.end());
  }
  return large;
}

void run_all(const std::vector<Case>& cases) {
  const struct {
    const char* name;
    bs::Host host;
  } hosts[] = {{"serial", bs::serial_host()},
               {"pool of 2", bs::pool_host(2)},
               {"pool of 3", bs::pool_host(3)}};
  std::istringstream names(bs::available_isas());
  for (std::string isa; names >> isa;) {
    if (!bs::choose_isa(isa.c_str())) throw std::runtime_error("cannot choose " + isa);
    const long before = failed;
    for (const Case& c : cases) {
      const bool large = c.size() > 16384;
      const bool copied = !large && c.index % 64 == 5 && c.size() > 0 && !c.shape.empty() &&
                          c.names.rounding != "stochastic";
      for (const auto& [name, host] : hosts) {
        if (large || host.threads == 1) Run(c, host, isa + ", " + name).all();
        if (copied) Run(stretched(c), host, isa + ", " + name + ", copies").all();
      }
    }
    std::printf("%s: %ld failures\n", isa.c_str(), failed - before);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    if (argc != 2)
      throw std::runtime_error("usage: codec_test FILE (tools/generate.py --vectors FILE)");
    run_all(read_cases(argv[1]));
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    ++failed;
  }
  std::printf("%ld passed, %ld failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
