#pragma once

#include <memory>

#include "operator.h"

namespace bs::ort {

std::unique_ptr<Kernel> make_matmul(const Node& node);

}  // namespace bs::ort
