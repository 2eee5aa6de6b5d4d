// What the updates are measured against.
#pragma once

#include <cstddef>

namespace byteps_like {

// Adds the gradient to the value and to `slots` (0 to 2) arrays of state, one behind the other, as a plain loop: reads
// and writes all that an update of so many numbers of state does, and computes next to nothing.
void StreamUpdate(float* value, float* state, size_t slots, const float* gradient, size_t count);

}  // namespace byteps_like
