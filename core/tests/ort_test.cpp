// The operators for ONNX Runtime on a fake of it: many threads on each kernel, against the core
// itself; what is refused; and that nothing leaks, races or throws.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "fake_ort.h"
#include "number_text.h"
#include "plan.h"

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base);

namespace {

using fake::Attributes;
using fake::Shape;
using Ints = std::vector<int64_t>;

std::atomic<int> passed{0}, failed{0};

void check(bool good, const std::string& what) {
  ++(good ? passed : failed);
  if (!good) std::printf("FAILED %s\n", what.c_str());
}

const OrtCustomOp* find(const OrtSessionOptions& options, const std::string& name,
                        OrtElementType x) {
  for (const OrtCustomOpDomain* domain : options.domains) {
    for (const OrtCustomOp* op : domain->ops) {
      const OrtElementType type = op->GetInputType(op, 0);
      if (op->GetName(op) == name && (type == x || type == kOrtUndefined)) return op;
    }
  }
  return nullptr;
}

// What a status says, released; empty for none.
std::string said(OrtStatus* status) {
  const std::string message = status ? status->message : "";
  delete status;
  return message;
}

struct Kernel {
  Kernel(const OrtCustomOp* made_by, const OrtKernelInfo& info) : op(made_by) {
    message = said(op->CreateKernelV2(op, &fake::api(), &info, &kernel));
  }
  ~Kernel() {
    if (kernel) op->KernelDestroy(kernel);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const OrtCustomOp* op;
  void* kernel = nullptr;
  std::string message;
};

OrtKernelInfo info_of(const Attributes& attributes, const std::vector<OrtElementType>& inputs,
                      const std::vector<OrtElementType>& outputs) {
  OrtKernelInfo info{attributes, {}, {}};
  for (const OrtElementType type : inputs) {
    info.inputs.push_back({type, {}, {}});
  }
  for (const OrtElementType type : outputs) info.outputs.push_back({type, {}, {}});
  return info;
}

std::unique_ptr<OrtValue> random_tensor(const Shape& shape, unsigned seed) {
  auto made = fake::tensor(kOrtFloat, shape);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  auto* data = static_cast<float*>(made->data);
  for (int64_t i = 0; i < bs::ort::count(shape); ++i)
    data[i] = std::ldexp(normal(random), int(i % 9));
  return made;
}

OrtKernelContext context_of(const std::vector<const OrtValue*>& inputs,
                            const std::vector<OrtElementType>& outputs) {
  OrtKernelContext context{inputs, {}, outputs};
  context.outputs.resize(outputs.size());
  return context;
}

// By the core, on one thread.
std::vector<float> fake_quantized(const OrtValue& x, const std::string& text, const Shape& block) {
  const bs::Plan plan(bs::numbers_of(bs::numbers_named(text)), x.shape, block);
  std::vector<float> y(size_t(bs::ort::count(x.shape)));
  const bs::Memory from{static_cast<unsigned char*>(x.data), y.size() * 4};
  const bs::Memory to{reinterpret_cast<unsigned char*>(y.data()), y.size() * 4};
  bs::Parameters none{};
  none.tensor_scale = 1;
  plan.fake_quantize({from, 0, {}}, {to, 0, {}}, none, 0, bs::serial_host());
  return y;
}

bool same(const OrtValue& a, const std::vector<float>& b) {
  return b.empty() || std::memcmp(a.data, b.data(), b.size() * sizeof(float)) == 0;
}

// Calls body(thread) on several threads at once.
template <class Body>
void on_threads(Body body) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 8; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

constexpr int kRuns = 60;

// One kernel, shapes and ranks that change from run to run.
void quark_on_threads(const OrtSessionOptions& options) {
  const OrtCustomOp* op = find(options, "MXQuantizeDequantize", kOrtFloat);
  const Kernel kernel(op, info_of({{"axis", int64_t{-1}},
                                   {"block_size", int64_t{16}},
                                   {"element_dtype", std::string("fp6_e2m3")}},
                                  {kOrtFloat}, {kOrtFloat}));
  check(kernel.message.empty(), kernel.message);
  const Shape shapes[] = {{5}, {3, 70}, {200, 300}, {2, 3, 4, 33}, {0, 7}, {1, 1, 1}};
  on_threads([&](unsigned thread) {
    for (int run = 0; run < kRuns; ++run) {
      const Shape& shape = shapes[(thread + unsigned(run)) % std::size(shapes)];
      const auto x = random_tensor(shape, thread * 1000 + unsigned(run));
      OrtKernelContext context = context_of({x.get()}, {kOrtFloat});
      const std::string message = said(op->KernelComputeV2(kernel.kernel, &context));
      Shape block(shape.size(), 1);
      block.back() = 16;
      auto wanted = fake_quantized(*x, "mxfp6,dialect=quark", block);
      if (wanted.size() == 1) wanted[0] = *static_cast<float*>(x->data);
      check(message.empty() && same(*context.outputs[0], wanted), "quark " + message);
    }
  });
}

// DynamicQuantize, Quantize with its scales and Dequantize; what comes back is fake_quantize's.
void codes_on_threads(const OrtSessionOptions& options, const std::string& text,
                      OrtElementType codes, OrtElementType scale) {
  const Attributes place{{"numbers", text}, {"block", Ints{1, 16}}};
  Attributes decode = place;
  decode["shape"] = Ints{-1, 64};
  const std::vector<OrtElementType> made{codes, scale, kOrtInt32, kOrtFloat};
  const Kernel measure(find(options, "DynamicQuantize", kOrtFloat),
                       info_of(place, {kOrtFloat}, made));
  const Kernel quantize(find(options, "Quantize", kOrtFloat),
                        info_of(place, {kOrtFloat, scale, kOrtInt32, kOrtFloat}, {codes}));
  const Kernel dequantize(find(options, "Dequantize", kOrtFloat),
                          info_of(decode, made, {kOrtFloat}));
  check((measure.message + quantize.message + dequantize.message).empty(),
        text + measure.message + quantize.message + dequantize.message);
  on_threads([&](unsigned thread) {
    for (int run = 0; run < kRuns; ++run) {
      const Shape shape{int64_t(thread) * 37 + run % 7, 64};
      const auto x = random_tensor(shape, thread * 1000 + unsigned(run));
      OrtKernelContext first = context_of({x.get()}, made);
      std::string message = said(measure.op->KernelComputeV2(measure.kernel, &first));
      std::vector<const OrtValue*> found;
      for (const auto& output : first.outputs) found.push_back(output.get());
      OrtKernelContext second = context_of({x.get(), found[1], found[2], found[3]}, {codes});
      message += said(quantize.op->KernelComputeV2(quantize.kernel, &second));
      OrtKernelContext third = context_of(found, {kOrtFloat});
      message += said(dequantize.op->KernelComputeV2(dequantize.kernel, &third));
      check(message.empty() && second.outputs[0]->own == found[0]->own &&
                same(*third.outputs[0], fake_quantized(*x, text, {1, 16})),
            text + " " + message);
      OrtKernelContext alone = context_of({x.get()}, {codes, kOrtUndefined});
      check(said(measure.op->KernelComputeV2(measure.kernel, &alone)).empty() &&
                alone.outputs[0]->own == found[0]->own,
            "codes alone");
    }
  });
}

void products_on_threads(const OrtSessionOptions& options) {
  const OrtCustomOp* op = find(options, "MatMul", kOrtFloat);
  const Kernel kernel(op, info_of({{"numbers", std::string("mxfp4")},
                                   {"block", Ints{32, 1}},
                                   {"shape", Ints{64, 6}},
                                   {"x_numbers", std::string("mxint8")},
                                   {"x_block", int64_t{32}}},
                                  {kOrtFloat, kOrtUint8, kOrtUint8}, {kOrtFloat}));
  check(kernel.message.empty(), kernel.message);
  const auto codes = fake::tensor(kOrtUint8, {64, 3}), scales = fake::tensor(kOrtUint8, {2, 6});
  std::fill(codes->own.begin(), codes->own.end(), uint8_t{0x22});   // 1
  std::fill(scales->own.begin(), scales->own.end(), uint8_t{127});  // 2^0
  on_threads([&](unsigned thread) {
    for (int run = 0; run < kRuns; ++run) {
      const auto x = random_tensor({int64_t(thread), run % 3, 64}, thread * 1000 + unsigned(run));
      OrtKernelContext context = context_of({x.get(), codes.get(), scales.get()}, {kOrtFloat});
      const std::string message = said(op->KernelComputeV2(kernel.kernel, &context));
      const auto rows = fake_quantized(*x, "mxint8", {1, 1, 32});
      std::vector<float> wanted;
      for (size_t i = 0; i < rows.size(); i += 64) {
        float sum = 0;
        for (size_t j = i; j < i + 64; ++j) sum += rows[j];
        wanted.insert(wanted.end(), 6, sum);
      }
      check(message.empty() && same(*context.outputs[0], wanted), "product " + message);
    }
  });
}

void refusals(const OrtSessionOptions& options) {
  const OrtCustomOp* op = find(options, "FakeQuantize", kOrtFloat);
  const Attributes bad[] = {
      {},
      {{"numbers", std::string("mxfp5")}, {"block", Ints{1}}},
      {{"numbers", int64_t{4}}, {"block", Ints{1}}},
      {{"numbers", std::string("mxfp4")}, {"block", Ints{-1}}},
      {{"numbers", std::string("mxfp4")}, {"block", int64_t{32}}},
      {{"numbers", std::string("mxfp4")}, {"block", Ints{1}}, {"seed", 1.5f}},
  };
  for (const Attributes& attributes : bad) {
    const Kernel kernel(op, info_of(attributes, {kOrtFloat}, {kOrtFloat}));
    check(!kernel.kernel && kernel.message.starts_with("blockscale::FakeQuantize 'node': "),
          "refused: " + kernel.message);
  }
  const Kernel kernel(op, info_of({{"numbers", std::string("int8")}, {"block", Ints{1, 0}}},
                                  {kOrtFloat, kOrtFloat}, {kOrtFloat}));
  const auto x = random_tensor({2, 8}, 1), scale = fake::tensor(kOrtFloat, {2, 1}),
             other = random_tensor({3}, 1);
  const std::vector<std::vector<const OrtValue*>> wrong{{other.get()},
                                                        {x.get(), other.get()},
                                                        {x.get(), scale.get()},
                                                        {x.get(), nullptr, other.get()}};
  on_threads([&](unsigned thread) {
    for (int run = 0; run < kRuns; ++run) {
      OrtKernelContext context =
          context_of(wrong[(thread + unsigned(run)) % wrong.size()], {kOrtFloat});
      check(!said(op->KernelComputeV2(kernel.kernel, &context)).empty(), "refused when it runs");
    }
  });
}

OrtTensorTypeAndShapeInfo sized(OrtElementType type, const Shape& shape,
                                const std::vector<std::string>& names) {
  OrtTensorTypeAndShapeInfo info;
  info.type = type;
  info.shape = shape;
  info.names = names;
  return info;
}

void shapes(const OrtSessionOptions& options) {
  const auto x = sized(kOrtFloat, {-1, 64}, {"batch", ""});
  OrtShapeInferContext measure{
      {{"numbers", std::string("mxfp4")}, {"block", Ints{1, 32}}}, {x}, {}};
  measure.outputs.resize(2);
  const OrtCustomOp* op = find(options, "DynamicQuantize", kOrtFloat);
  check(said(op->InferOutputShapeFn(op, &measure)).empty(), "infer");
  check(measure.outputs[0].shape == Shape({-1, 32}) && measure.outputs[0].names[0] == "batch" &&
            measure.outputs[0].type == kOrtUint8 && measure.outputs[1].shape == Shape({-1, 2}),
        "shapes of codes and scales");
  // Attributes and inputs of all kinds: nothing may go wrong.
  const fake::Attribute values[] = {
      int64_t{-1}, 1.5f,        std::string(), std::string("mxfp4"), std::string("int8,rule=no"),
      Ints{},      Ints{1, 32}, Ints{-1, 64},  Ints{0, -5}};
  std::mt19937 random(7);
  for (const OrtCustomOpDomain* domain : options.domains) {
    for (const OrtCustomOp* one : domain->ops) {
      for (int run = 0; run < 300; ++run) {
        OrtShapeInferContext context;
        for (const char* name : {"numbers", "block", "shape", "dtype", "trans_b", "axis"}) {
          if (random() % 4) context.attributes[name] = values[random() % std::size(values)];
        }
        const OrtTensorTypeAndShapeInfo inputs[] = {{},
                                                    x,
                                                    sized(kOrtUint8, {4, 32}, {}),
                                                    sized(kOrtFloat, {}, {}),
                                                    sized(kOrtFloat, {-1}, {})};
        for (unsigned i = random() % 5; i > 0; --i) context.inputs.push_back(inputs[random() % 5]);
        context.outputs.resize(std::string(one->GetName(one)) == "DynamicQuantize" ? 2 : 1);
        said(one->InferOutputShapeFn(one, &context));
        ++passed;
      }
    }
  }
}

}  // namespace

int main() {
  OrtSessionOptions options, others;
  on_threads([](unsigned) {
    OrtSessionOptions mine;
    check(said(RegisterCustomOps(&mine, &fake::base())).empty(), "registered");
  });
  check(said(RegisterCustomOps(&options, &fake::base())).empty(), "registered");
  check(said(RegisterCustomOps(&others, &fake::base())).empty(), "registered again");
  check(options.domains == others.domains, "sessions share what is registered");
  const OrtApiBase old{
      [](uint32_t version) -> const OrtApi* { return version > 16 ? nullptr : &fake::api(); },
      [] { return "1.16.3"; }};
  check(said(RegisterCustomOps(&others, &old)).find("1.17 or newer, this is 1.16.3") !=
            std::string::npos,
        "an old runtime is refused");
  quark_on_threads(options);
  codes_on_threads(options, "mxfp4", kOrtUint8, kOrtUint8);
  codes_on_threads(options, "nvfp4", kOrtUint8, kOrtUint8);
  codes_on_threads(options, "uint8", kOrtUint8, kOrtFloat);
  codes_on_threads(options, "int12,scale=f16", kOrtInt16, kOrtFloat16);
  products_on_threads(options);
  refusals(options);
  shapes(options);
  std::printf("%d checks passed, %d failed\n", passed.load(), failed.load());
  return failed.load() == 0 ? 0 : 1;
}
