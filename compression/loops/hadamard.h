// The loops of random rotations: x -> H D x with D a diagonal of random signs and H the Walsh-Hadamard matrix, not
// normalised. Groups of 256 elements: 32 rows of eight lanes.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

struct HadamardLoops {
  // Sums of x[i]^2 in 16 lanes by i mod 16, in fp64, added to `lanes`.
  void (*squares)(const float* x, size_t count, double* lanes);
  // out[i] = base[i] + factor * (+-x[i]); no `base`: 0. The sign of row r, lane l of group n is bit r of word 8 n + l
  // of the stream, minus for 1; `first` is the number of the first group. Any count; `out` may be `x` or `base`.
  void (*flip)(const float* x, size_t count, const uint32_t* stream, uint32_t first, float factor, const float* base,
               float* out);
  // block = H block, in place. `count`: a power of two, 256 to 32768. The additions come in the order of strides 8, 16,
  // 32, 1, 2, 4, 64, 128, ...
  void (*transform)(float* block, size_t count);
};

}  // namespace byteps_like
