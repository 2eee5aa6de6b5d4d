// The loops of THC. Codes lie as compression/loops/codes.h says; a group's sums lie so that a lookup of bytes finds its
// place: as bytes, row 16 w + 4 m + s, lane l at 32 (4 w + s) + 4 l + m; as 16 bits, at 32 (4 w + s) + 16 (m % 2) +
// 2 l + m / 2.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

// A coordinate's place between the points of a table, in units of 2^-16 codes, is the sum of all ramps: each rises from
// 0 to `top` along multiplier * coordinate + offset. Neighbouring cells of one width share a ramp.
struct ThcRamp {
  float multiplier, offset, top;
};

struct ThcLoops {
  // Codes of `groups` groups. Random halves: of element i, with h = i / 8 the row, the low (h even) or high half of
  // word (h / 2) * 8 + i % 8 of the stream; `first` is the number of the first group.
  void (*quantise)(const float* block, size_t groups, const ThcRamp* ramps, size_t count, int bits,
                   const uint32_t* stream, uint32_t first, uint32_t* codes);
  // sums += table[code], modulo 2^8 or 2^16; `table` has 16 entries.
  void (*accumulate8)(const uint32_t* codes, size_t groups, int bits, const uint8_t* table, uint8_t* sums);
  void (*accumulate16)(const uint32_t* codes, size_t groups, int bits, const uint8_t* table, uint16_t* sums);
  // block = 2 sum - offset.
  void (*centre8)(const uint8_t* sums, size_t groups, float offset, float* block);
  void (*centre16)(const uint16_t* sums, size_t groups, float offset, float* block);
  // How many are beyond +-limit.
  size_t (*beyond)(const float* block, size_t count, float limit);
};

}  // namespace byteps_like
