// The loops of EDEN. A code is the number of a magnitude, with the sign as its highest bit; codes lie as
// compression/loops/codes.h says.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

struct EdenLoops {
  // A code's magnitude is the number of `limits` (2^(bits - 1) - 1 of them, rising) that |block[i]| is beyond. Adds the
  // products of block[i] and what its code stands for, in fp64, to 16 lanes by i mod 16. `magnitudes` has 8 entries.
  void (*quantise)(const float* block, size_t groups, int bits, const float* limits, const float* magnitudes,
                   uint32_t* codes, double* lanes);
  // block[i] = what its code stands for.
  void (*points)(const uint32_t* codes, size_t groups, int bits, const float* magnitudes, float* block);
};

}  // namespace byteps_like
