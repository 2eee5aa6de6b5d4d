// The loops of codecs that keep a small whole number of each element. Numbers -levels ... levels are stored plus
// `levels`, in `bits` bits: in groups of 32 * 8/bits elements, whose byte j holds elements j, j + 32, j + 64, ... from
// its lowest bit up, so that taking them apart moves no lane. The last group has as many bytes as it needs.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

enum class Rounding : uint8_t { kZero, kNearest, kStochastic, kNatural };

struct Grid {
  uint32_t bits = 8;      // 2, 4 or 8
  uint32_t levels = 127;  // at most 2^(bits-1) - 1
  // kZero: all are 0. kNatural: number q stands for +-2^(|q| - levels), else for q; stochastic, too.
  Rounding rounding = Rounding::kNearest;
};

struct Stretch {       // of a partition
  uint32_t first = 0;  // its first element's place, that of its random word
  uint32_t count = 0;  // a group ends where another stretch follows
};

struct QuantisedLoops {
  // The greatest |x[i]|, as its bits: 0x7F800000 and more if any isn't finite.
  uint32_t (*magnitude)(const float* x, size_t count);
  // Sums of squares in 16 lanes by i mod 16, in fp64, added to `lanes`.
  void (*squares)(const float* x, size_t count, double* lanes);
  // x[i] * inverse, rounded and held within the levels; `low` and `high` name the stream of random words.
  void (*pack)(const float* x, Stretch stretch, Grid grid, float inverse, uint32_t low, uint32_t high, uint8_t* bytes);
  // sum[i] = (add ? sum[i] : 0) + step * what the number stands for.
  void (*unpack)(const uint8_t* bytes, size_t count, Grid grid, float step, bool add, float* sum);
  // sums[i] += the number as it is stored; sums of `width` bytes (1, 2, 4), they wrap.
  void (*add)(const uint8_t* bytes, size_t count, uint32_t bits, uint32_t width, void* sums);
  // out[i] = step * (sums[i] - offset).
  void (*spread)(const void* sums, size_t count, uint32_t width, uint32_t offset, float step, float* out);
};

}  // namespace byteps_like
