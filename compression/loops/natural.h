// The loops of natural: powers of two by their biased exponents, signs as in onebit.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

struct NaturalLoops {
  // Rounds |x[i]| to one of the two powers of two around it; 255 for what isn't finite, and only for that.
  void (*pack)(const float* x, size_t count, uint32_t low, uint32_t high, uint8_t* exponents);
  // sum[i] = (add ? sum[i] : 0) + factor * (+-2^(exponents[i] - 127)): 0 for 0, an infinity for 255.
  void (*unpack)(const uint32_t* signs, const uint8_t* exponents, size_t count, float factor, bool add, float* sum);
};

}  // namespace byteps_like
