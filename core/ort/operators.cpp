#include "matmul.h"
#include "operator.h"

#include "inference.h"
#include "quantize.h"
#include "quark.h"

namespace bs::ort {

namespace {

constexpr const char* kOurs = "blockscale";

constexpr Parameter kX[] = {{"x", Takes::kFloats}};
constexpr Parameter kSameY[] = {{"y", Takes::kSame}};
constexpr Parameter kXAndParameters[] = {{"x", Takes::kFloats},
                                         {"scale", Takes::kAny, true},
                                         {"zero_point", Takes::kInt32, true},
                                         {"tensor_scale", Takes::kFloat32, true}};
constexpr Parameter kXAndTensorScale[] = {{"x", Takes::kFloats},
                                          {"tensor_scale", Takes::kFloat32, true}};
constexpr Parameter kCodes[] = {{"codes", Takes::kAny}};
constexpr Parameter kCodesAndParameters[] = {{"codes", Takes::kAny},
                                             {"scale", Takes::kAny},
                                             {"zero_point", Takes::kInt32, true},
                                             {"tensor_scale", Takes::kFloat32, true}};
constexpr Parameter kAnyY[] = {{"y", Takes::kAny}};
constexpr Parameter kXAndWeight[] = {{"x", Takes::kFloats},
                                     {"codes", Takes::kAny},
                                     {"scale", Takes::kAny},
                                     {"zero_point", Takes::kInt32, true},
                                     {"tensor_scale", Takes::kFloat32, true},
                                     {"bias", Takes::kAny, true}};

constexpr Operator kOperators[] = {
    {kOurs, "FakeQuantize", kXAndParameters, kSameY, make_fake_quantize, infer_same},
    {kOurs, "Quantize", kXAndParameters, kCodes, make_quantize, infer_codes, true},
    {kOurs, "DynamicQuantize", kXAndTensorScale, kCodesAndParameters, make_dynamic_quantize,
     infer_measured, true},
    {kOurs, "Dequantize", kCodesAndParameters, kAnyY, make_dequantize, infer_decoded, true},
    {kOurs, "MatMul", kXAndWeight, kSameY, make_matmul, infer_product},
    {"com.amd.quark", "MXQuantizeDequantize", kX, kSameY, make_quark_mx, infer_same},
    {"com.vai.quantize", "MXFixNeuron", kX, kSameY, make_quark_mx, infer_same},
    {"com.amd.quark", "BFPQuantizeDequantize", kX, kSameY, make_quark_bfp, infer_same},
    {"com.vai.quantize", "BFPFixNeuron", kX, kSameY, make_quark_bfp, infer_same},
};

}  // namespace

std::span<const Operator> operators() { return kOperators; }

}  // namespace bs::ort
