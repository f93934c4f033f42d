#include "node.h"

#include "api.h"
#include "argument_error.h"

namespace bs::ort {

namespace {

std::string node_name(const OrtApi& api, const OrtKernelInfo* info) {
  size_t size = 0;
  if (!succeeds(api, api.KernelInfo_GetNodeName(info, nullptr, &size)) || size < 2) return {};
  std::string name(size + 1, '\0');
  if (!succeeds(api, api.KernelInfo_GetNodeName(info, name.data(), &size))) return {};
  name.resize(name.find('\0'));
  return name;
}

std::optional<std::string> found_text(const OrtApi& api, const OrtKernelInfo* info,
                                      const char* name) {
  size_t size = 0;
  if (!succeeds(api, api.KernelInfoGetAttribute_string(info, name, nullptr, &size))) return {};
  std::string text(size + 1, '\0');
  check(api, api.KernelInfoGetAttribute_string(info, name, text.data(), &size));
  text.resize(text.find('\0'));
  return text;
}

std::optional<std::vector<int64_t>> found_integers(const OrtApi& api, const OrtKernelInfo* info,
                                                   const char* name) {
  size_t size = 0;
  if (!succeeds(api, api.KernelInfoGetAttributeArray_int64(info, name, nullptr, &size))) return {};
  std::vector<int64_t> all(size);
  if (size != 0) check(api, api.KernelInfoGetAttributeArray_int64(info, name, all.data(), &size));
  return all;
}

}  // namespace

const char* name_of(OrtElementType type) {
  switch (type) {
    case kOrtFloat:
      return "float32";
    case kOrtFloat16:
      return "float16";
    case kOrtBfloat16:
      return "bfloat16";
    case kOrtUint8:
      return "uint8";
    case kOrtInt8:
      return "int8";
    case kOrtUint16:
      return "uint16";
    case kOrtInt16:
      return "int16";
    case kOrtInt32:
      return "int32";
    case kOrtDouble:
      return "float64";
    default:
      return "of another type";
  }
}

bool is_float(OrtElementType type) {
  return type == kOrtFloat || type == kOrtFloat16 || type == kOrtBfloat16;
}

std::string shown(const Shape& shape) {
  std::string text;
  for (const int64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "(" + text + ")";
}

Node::Node(const OrtApi& api, const OrtKernelInfo* info, const Operator& row)
    : api_(api),
      info_(info),
      row_(row),
      where_(std::string(row.domain) + "::" + row.name + " '" + node_name(api, info) + "'") {
  ort::check(api, api.KernelInfo_GetInputCount(info, &inputs_));
  ort::check(api, api.KernelInfo_GetOutputCount(info, &outputs_));
}

void Node::check() const {
  const auto at_most = [](const char* what, size_t given, size_t most) {
    if (given > most) refuse(what, int64_t(given), "at most " + std::to_string(most));
  };
  at_most("inputs", inputs_, row_.inputs.size());
  at_most("outputs", outputs_, row_.outputs.size());
  for (size_t i = 0; i < row_.inputs.size(); ++i) {
    const auto found = input(i);
    if (!found) continue;
    const OrtElementType type = found->type;
    const Parameter& wanted = row_.inputs[i];
    if (wanted.takes == Takes::kFloats && !is_float(type)) {
      refuse(wanted.name, name_of(type), "float32, float16 or bfloat16; Cast it first");
    }
    if (wanted.takes == Takes::kInt32 && type != kOrtInt32) {
      refuse(wanted.name, name_of(type), "int32");
    }
    if (wanted.takes == Takes::kFloat32 && type != kOrtFloat) {
      refuse(wanted.name, name_of(type), "float32");
    }
  }
}

std::string Node::text(const char* name, const char* absent) const {
  if (auto found = found_text(api_, info_, name)) return *found;
  refuse_other_types(name, "a string");
  return absent;
}

std::string Node::text(const char* name) const {
  if (auto found = found_text(api_, info_, name)) return *found;
  refuse_other_types(name, "a string");
  refuse(name, "missing", "a string; the operator needs it");
}

int64_t Node::integer(const char* name, int64_t absent) const {
  int64_t value = 0;
  if (succeeds(api_, api_.KernelInfoGetAttribute_int64(info_, name, &value))) return value;
  refuse_other_types(name, "an integer");
  return absent;
}

std::vector<int64_t> Node::integers(const char* name) const {
  // The getter of a list takes any attribute, and finds no entries in one of another type.
  const auto found = found_integers(api_, info_, name);
  if (!found || found->empty()) refuse_other_types(name, "a list of integers");
  return found.value_or(std::vector<int64_t>{});
}

// An attribute that a getter does not find is absent, or of another type: the others are asked.
void Node::refuse_other_types(const char* name, const char* wanted) const {
  int64_t integer = 0;
  float number = 0;
  size_t size = 0;
  const char* type = nullptr;
  const auto list = found_integers(api_, info_, name);
  if (list && !list->empty()) type = "a list of integers";
  if (succeeds(api_, api_.KernelInfoGetAttributeArray_float(info_, name, nullptr, &size)) &&
      size != 0) {
    type = "a list of floats";
  }
  if (found_text(api_, info_, name)) type = "a string";
  if (succeeds(api_, api_.KernelInfoGetAttribute_int64(info_, name, &integer))) type = "an integer";
  if (succeeds(api_, api_.KernelInfoGetAttribute_float(info_, name, &number))) type = "a float";
  if (type != nullptr) refuse(name, type, wanted);
}

std::optional<Known> Node::known(OrtStatus* status, OrtTypeInfo* made) const {
  if (!succeeds(api_, status) || made == nullptr) return {};
  const Owned<OrtTypeInfo> info(made, api_.ReleaseTypeInfo);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (!succeeds(api_, api_.CastTypeInfoToTensorInfo(info.get(), &tensor)) || tensor == nullptr) {
    return {};
  }
  Known result{kOrtUndefined, {}};
  ort::check(api_, api_.GetTensorElementType(tensor, &result.type));
  size_t rank = 0;
  ort::check(api_, api_.GetDimensionsCount(tensor, &rank));
  // No dimensions are said of a scalar, and of a tensor whose rank is not known.
  if (rank != 0) {
    result.shape.emplace(rank);
    ort::check(api_, api_.GetDimensions(tensor, result.shape->data(), rank));
  }
  return result;
}

std::optional<Known> Node::input(size_t index) const {
  if (index >= inputs_) return {};
  OrtTypeInfo* info = nullptr;
  OrtStatus* status = api_.KernelInfo_GetInputTypeInfo(info_, index, &info);
  return known(status, info);
}

std::optional<Known> Node::output(size_t index) const {
  if (index >= outputs_) return {};
  OrtTypeInfo* info = nullptr;
  OrtStatus* status = api_.KernelInfo_GetOutputTypeInfo(info_, index, &info);
  return known(status, info);
}

}  // namespace bs::ort
