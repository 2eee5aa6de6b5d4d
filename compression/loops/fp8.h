// The loops of fp8: blocks scaled by powers of two, whose exponents are bytes: 2^(byte - 127), 0 for zero, 255 for NaN.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

struct Fp8Loops {
  // Of each block of `block` elements (the last may be short): the least exponent with which its greatest magnitude is
  // at most 1.75 * 2^top, and its elements divided by that power: zeros, if one isn't finite.
  void (*scale)(const float* x, size_t count, size_t block, uint32_t top, uint8_t* exponents, float* scaled);
  // sum[i] = (add ? sum[i] : 0) + factor * 2^exponent * values[i].
  void (*unscale)(const float* values, size_t count, size_t block, const uint8_t* exponents, float factor, bool add,
                  float* sum);
};

}  // namespace byteps_like
