#pragma once

#include <memory>

#include "operator.h"

namespace bs::ort {

// com.amd.quark::MXQuantizeDequantize and, by its older name, com.vai.quantize::MXFixNeuron.
std::unique_ptr<Kernel> make_quark_mx(const Node& node);
// com.amd.quark::BFPQuantizeDequantize, com.vai.quantize::BFPFixNeuron.
std::unique_ptr<Kernel> make_quark_bfp(const Node& node);

}  // namespace bs::ort
