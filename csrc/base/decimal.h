// Numbers in errors, as Python writes them.
#pragma once

#include <string>

namespace byteps_like {

// The shortest text that is read back as the same number, as Python's repr: "0.1", "1.0", "1e-05", "inf".
std::string DecimalOf(double value);

}  // namespace byteps_like
