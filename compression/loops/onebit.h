// The loops of onebit: signs packed into words, 32 elements each, the first in the lowest bit.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

struct OnebitLoops {
  // A bit is set for a sign bit: -0 is negative. `count` in elements; the last word's spare bits are 0.
  void (*pack)(const float* x, size_t count, uint32_t* words);
  // The same, and sums of |x[i]| in 16 lanes by i mod 16, in fp64, added to `lanes`: x comes from memory once.
  void (*pack_and_sum)(const float* x, size_t count, uint32_t* words, double* lanes);
  // sum[i] = (add ? sum[i] : 0) +- scale.
  void (*unpack)(const uint32_t* words, size_t count, float scale, bool add, float* sum);
};

}  // namespace byteps_like
