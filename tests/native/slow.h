// How many times slower a test runs here.
#pragma once

#include <cstdint>

#include "tests/sanitizers.h"

namespace byteps_like::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr uint32_t kSlow = 10;  // sanitizers: fewer rounds, smaller blocks
#else
inline constexpr uint32_t kSlow = 1;
#endif

}  // namespace byteps_like::testing
