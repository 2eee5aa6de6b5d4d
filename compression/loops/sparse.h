// The loops of the sparse codecs: what isn't zero, what is large, and elements picked by a mask of bits and put back.
// Masks are words of 32 bits, the first in the lowest; -0 counts as zero, NaN does not. A magnitude is an fp32 without
// its sign bit, as a number: they are ordered as the absolute values are, and NaN is above infinity.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

inline constexpr size_t kMagnitudeBits = 31;
inline constexpr size_t kMagnitudeMask = 0x7FFFFFFF;

struct SparseLoops {
  // A bit per element that isn't zero; the last word's spare bits are 0.
  void (*nonzero)(const float* x, size_t count, uint32_t* words);
  // A bit per block of `block` elements that aren't all zero; the last may be shorter, and the last word's spare bits
  // are 0. Whole words are found fastest by the four.
  void (*nonzero_blocks)(const float* x, size_t count, size_t block, uint32_t* words);
  // The largest magnitude.
  uint32_t (*largest)(const float* x, size_t count);
  // Writes the indices whose magnitude is at least `least`, ascending, and unless it is null their `values` as bits;
  // returns how many. Both have room for `count`.
  size_t (*at_least)(const float* x, size_t count, uint32_t least, uint32_t* indices, uint32_t* values);
  // Those elements of x whose bit is set, one after another; returns how many.
  size_t (*pick)(const float* x, const uint32_t* words, size_t count, float* values);
  // out[i] = 0 + factor * (the next value) where the bit is set, else 0. Returns how many values it took.
  size_t (*spread)(const uint32_t* words, size_t count, const float* values, float factor, float* out);
  // out[i] = (add ? out[i] : 0) + factor * values[i].
  void (*scaled)(const float* values, size_t count, float factor, bool add, float* out);
  // Sums of squares in 16 lanes by i mod 16, in fp64, added to `lanes`.
  void (*squares)(const float* x, size_t count, double* lanes);
};

}  // namespace byteps_like
