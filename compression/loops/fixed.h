// The loops of fixed: multiples of a power of two.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

struct FixedLoops {
  uint32_t (*magnitude)(const float* x, size_t count);  // the greatest |x[i]|, as its bits
  // integers[i] = x[i] * scale, to the nearest, ties to even; of `width` bytes, 2 or 4.
  void (*encode)(const float* x, size_t count, float scale, uint32_t width, void* integers);
  // out[i] = (integers[i] * factor) * step; with `add`, it is added to what is there.
  void (*decode)(const void* integers, size_t count, uint32_t width, float step, float factor, bool add, float* out);
};

}  // namespace byteps_like
