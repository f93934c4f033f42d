#pragma once

#include <memory>

#include "operator.h"

namespace bs::ort {

std::unique_ptr<Kernel> make_fake_quantize(const Node& node);
std::unique_ptr<Kernel> make_quantize(const Node& node);
std::unique_ptr<Kernel> make_dynamic_quantize(const Node& node);
std::unique_ptr<Kernel> make_dequantize(const Node& node);

}  // namespace bs::ort
