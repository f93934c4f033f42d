// Numbers as text, `base` or `base,key=value,…`: the language of scheme.numbers_named, for those
// who have no Python. Bases and dialects are its tables, generated.
#pragma once

#include <string>

#include "plan.h"

namespace bs {

// Errors are ArgumentError and say what is allowed.
NumberNames numbers_named(const std::string& text);

}  // namespace bs
