#include "inference.h"

#include <atomic>
#include <deque>

#include "api.h"
#include "argument_error.h"
#include "quantizer.h"

namespace bs::ort {

Inference::Inference(const OrtApi& api, OrtShapeInferContext* context)
    : api_(api), context_(context) {
  check(api, api.ShapeInferContext_GetInputCount(context, &inputs_));
}

std::optional<Said> Inference::input(size_t index) const {
  if (index >= inputs_) return {};
  OrtTensorTypeAndShapeInfo* info = nullptr;  // it stays the runtime's
  OrtStatus* status = api_.ShapeInferContext_GetInputTypeShape(context_, index, &info);
  if (!succeeds(api_, status) || info == nullptr) return {};
  Said said{kOrtUndefined, {}};
  check(api_, api_.GetTensorElementType(info, &said.type));
  size_t rank = 0;
  check(api_, api_.GetDimensionsCount(info, &rank));
  // No dimensions are said of a scalar, and of a tensor whose rank is not known.
  if (rank == 0) return said;
  std::vector<int64_t> sizes(rank);
  std::vector<const char*> names(rank);
  check(api_, api_.GetDimensions(info, sizes.data(), rank));
  check(api_, api_.GetSymbolicDimensions(info, names.data(), rank));
  Dims dims(rank);
  for (size_t i = 0; i < rank; ++i) {
    dims[i] = {sizes[i], sizes[i] < 0 && names[i] ? names[i] : ""};
    if (sizes[i] < 0 && dims[i].name.empty()) return said;
  }
  said.dims = std::move(dims);
  return said;
}

const OrtOpAttr* Inference::attribute(const char* name) const {
  const OrtOpAttr* found = nullptr;
  if (!succeeds(api_, api_.ShapeInferContext_GetAttribute(context_, name, &found))) return nullptr;
  return found;
}

std::optional<std::string> Inference::text(const char* name) const {
  const OrtOpAttr* found = attribute(name);
  if (found == nullptr) return {};
  size_t size = 0;
  succeeds(api_, api_.ReadOpAttr(found, kOrtAttrString, nullptr, 0, &size));
  // Versions differ in whether the size has room for the end.
  std::string text(size + 1, '\0');
  if (!succeeds(api_, api_.ReadOpAttr(found, kOrtAttrString, text.data(), text.size(), &size))) {
    return {};
  }
  text.resize(text.find('\0'));
  return text;
}

std::optional<std::vector<int64_t>> Inference::integers(const char* name) const {
  const OrtOpAttr* found = attribute(name);
  if (found == nullptr) return {};
  size_t bytes = 0;
  succeeds(api_, api_.ReadOpAttr(found, kOrtAttrInts, nullptr, 0, &bytes));
  std::vector<int64_t> all(bytes / sizeof(int64_t));
  if (!succeeds(api_, api_.ReadOpAttr(found, kOrtAttrInts, all.data(), bytes, &bytes))) return {};
  return all;
}

int64_t Inference::integer(const char* name, int64_t absent) const {
  const OrtOpAttr* found = attribute(name);
  int64_t value = 0;
  size_t size = 0;
  if (found == nullptr) return absent;
  const bool read =
      succeeds(api_, api_.ReadOpAttr(found, kOrtAttrInt, &value, sizeof value, &size));
  return read ? value : absent;
}

// The versions that skip inputs that are left out (library.cpp) take the type from here too. No
// dimensions are those of a scalar there, so an output whose rank is not known must not be set; one
// that the node does not have neither: a runtime ends there. Without a name -1 is a size to it, so
// a size that is not known has one that no other has.
void Inference::set_output(size_t index, OrtElementType type, const Dims& dims) const {
  OrtTensorTypeAndShapeInfo* made = nullptr;
  check(api_, api_.CreateTensorTypeAndShapeInfo(&made));
  const Owned<OrtTensorTypeAndShapeInfo> info(made, api_.ReleaseTensorTypeAndShapeInfo);
  check(api_, api_.SetTensorElementType(made, type));
  static std::atomic<uint64_t> count{0};
  std::deque<std::string> own;
  std::vector<int64_t> sizes;
  std::vector<const char*> names;
  for (const Dim& dim : dims) {
    sizes.push_back(dim.size);
    const bool is_nameless = dim.size < 0 && dim.name.empty();
    if (is_nameless) own.push_back("blockscale_" + std::to_string(count++));
    names.push_back(is_nameless ? own.back().c_str() : dim.name.c_str());
  }
  check(api_, api_.SetDimensions(made, sizes.data(), sizes.size()));
  check(api_, api_.SetSymbolicDimensions(made, names.data(), names.size()));
  check(api_, api_.ShapeInferContext_SetOutputTypeShape(context_, index, made));
}

namespace {

// Numbers that cannot be read count as those of their base, or any: a type that is said lets the
// runtime come to the kernel, which says what is wrong.
Numbers numbers_or_like(const std::string& text) {
  for (const std::string& one : {text, text.substr(0, text.find(','))}) {
    try {
      return numbers_of("numbers", one);
    } catch (const ArgumentError&) {
    }
  }
  return numbers_of("numbers", "mxfp4");
}

Quantizer quantizer_of(const Inference& node) {
  return {numbers_or_like(node.text("numbers").value_or("")),
          node.integers("block").value_or(Shape{}), 0};
}

const Dim kUnknown{-1, ""};

// What a quantizer reads has an entry of its block for each dimension.
Dims dims_of(const Quantizer& quantizer, const std::optional<Said>& x) {
  const size_t rank = quantizer.block().size();
  return x && x->dims && x->dims->size() == rank ? *x->dims : Dims(rank, kUnknown);
}

// One entry a dimension: a named size only where blocks leave it as it is.
Dims scale_dims(const Quantizer& quantizer, const Dims& x) {
  Dims result;
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t n = x[i].size, b = quantizer.block()[i];
    if (b == 0) {
      result.push_back({1, ""});
    } else if (n >= 0) {
      result.push_back({n / b + (n % b != 0), ""});
    } else {
      result.push_back(b == 1 ? x[i] : kUnknown);
    }
  }
  return result;
}

// -1 is the size that the codes have.
Dims decoded_dims(const Inference& node, const Shape& said) {
  const Quantizer quantizer = quantizer_of(node);
  const auto codes = node.input(0);
  const bool packed = quantizer.numbers().element_format().packed();
  Dims result;
  const bool known = codes && codes->dims && codes->dims->size() == said.size();
  for (size_t i = 0; i < said.size(); ++i) {
    if (said[i] >= 0 || !known) {
      result.push_back(said[i] >= 0 ? Dim{said[i], ""} : kUnknown);
      continue;
    }
    Dim dim = (*codes->dims)[i];
    if (packed && i + 1 == said.size()) {
      dim = dim.size < 0 ? kUnknown
                         : Dim{quantizer.decoded_shape(Shape{dim.size}, Shape{-1}).back(), ""};
    }
    result.push_back(dim);
  }
  return result;
}

}  // namespace

// Where no dimensions are said, runtimes up to 1.31 at least take a scalar: nothing is said of an
// output whose type they know without it.
void infer_same(const Inference& node) {
  const auto x = node.input(0);
  if (x && x->dims) node.set_output(0, x->type, *x->dims);
}

void infer_codes(const Inference& node) {
  const Quantizer quantizer = quantizer_of(node);
  Dims codes = dims_of(quantizer, node.input(0));
  if (!codes.empty() && quantizer.numbers().element_format().packed()) {
    Dim& last = codes.back();
    last = last.size < 0 ? kUnknown : Dim{quantizer.codes_shape(Shape{last.size}).back(), ""};
  }
  node.set_output(0, quantizer.codes_type(), codes);
}

void infer_measured(const Inference& node) {
  infer_codes(node);
  const Quantizer quantizer = quantizer_of(node);
  node.set_output(1, quantizer.scale_type(),
                  scale_dims(quantizer, dims_of(quantizer, node.input(0))));
}

void infer_decoded(const Inference& node) {
  const auto type = OrtElementType(node.integer("dtype", kOrtFloat));
  const Shape said = node.integers("shape").value_or(Shape{});  // an empty list may be left out
  node.set_output(0, is_float(type) ? type : kOrtFloat, decoded_dims(node, said));
}

void infer_product(const Inference& node) {
  const auto x = node.input(0);
  const auto shape = node.integers("shape");
  if (!x || !x->dims || !shape || shape->size() != 2) return;
  Dims result = *x->dims;
  result.back() = {(*shape)[node.integer("trans_b", 0) == 1 ? 0 : 1], ""};
  node.set_output(0, x->type, result);
}

}  // namespace bs::ort
