// The one function that the library exports. ONNX Runtime calls it for each SessionOptions that
// registers the library.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "custom_op.h"
#include "operator.h"

#ifdef _WIN32
#define BS_ORT_EXPORT extern "C" __declspec(dllexport)
#else
#define BS_ORT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace bs::ort {

namespace {

// What is registered with one runtime. Sessions point into it until the process ends, so it is
// never destroyed, and all sessions share it.
struct Registry {
  const OrtApi* api;
  bool skips_absent_inputs;
  std::deque<CustomOp> ops;  // their addresses are kept
  std::vector<std::pair<std::string, OrtCustomOpDomain*>> domains;

  OrtCustomOpDomain* domain(const char* name) {
    for (const auto& [known, domain] : domains) {
      if (known == name) return domain;
    }
    OrtCustomOpDomain* made = nullptr;
    check(*api, api->CreateCustomOpDomain(name, &made));
    domains.emplace_back(name, made);
    return made;
  }

  void add(const Operator& row, OrtElementType type) {
    const bool infers =
        skips_absent_inputs || std::ranges::none_of(row.inputs, &Parameter::optional);
    const CustomOp& op = ops.emplace_back(*api, row, type, infers);
    check(*api, api->CustomOpDomain_Add(domain(row.domain), &op));
  }
};

// Until 1.23 a runtime that asks for shapes follows a null pointer where an input is left out.
bool skips_absent_inputs(const char* version) {
  char* end = nullptr;
  const long major = std::strtol(version, &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return std::pair{major, minor} >= std::pair{1L, 24L};
}

Registry* make_registry(const OrtApi* api, const char* version) {
  auto made = std::make_unique<Registry>();
  made->api = api;
  made->skips_absent_inputs = skips_absent_inputs(version);
  for (const Operator& row : operators()) {
    const bool by_type = row.inputs[0].takes == Takes::kFloats &&
                         (made->skips_absent_inputs || !row.types_from_model);
    if (!by_type) {
      made->add(row, kOrtUndefined);
      continue;
    }
    for (const OrtElementType type : {kOrtFloat, kOrtFloat16, kOrtBfloat16}) made->add(row, type);
  }
  return made.release();
}

const Registry& registry_of(const OrtApi* api, const char* version) {
  static std::mutex mutex;
  static auto& all = *new std::vector<Registry*>;
  const std::lock_guard lock(mutex);
  for (const Registry* one : all) {
    if (one->api == api) return *one;
  }
  all.reserve(all.size() + 1);
  return *all.emplace_back(make_registry(api, version));
}

}  // namespace

}  // namespace bs::ort

BS_ORT_EXPORT OrtStatus* BS_ORT_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                       const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(kOrtVersion);
  if (api == nullptr) {
    // The first entry of the table was never another.
    const OrtApi* first = base->GetApi(1);
    const std::string message =
        std::string("blockscale needs ONNX Runtime 1.17 or newer, this is ") +
        base->GetVersionString();
    return first ? first->CreateStatus(kOrtFail, message.c_str()) : nullptr;
  }
  return bs::ort::guarded(*api, "blockscale", [&] {
    for (const auto& [name, domain] : bs::ort::registry_of(api, base->GetVersionString()).domains) {
      bs::ort::check(*api, api->AddCustomOpDomain(options, domain));
    }
  });
}
