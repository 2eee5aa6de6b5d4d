// The part of fixed that CPU and GPU share.
#pragma once

#include <cstdint>

namespace byteps_like {

// The greatest k such that `world` integers of magnitude 2^k + 1/2 add up to less than 2^(bits - 1); below 0 if none.
int BitsOfMagnitude(uint32_t bits, uint32_t world);

}  // namespace byteps_like
