// How codes of 1 to 4 bits lie in a payload. A group is 256 elements: 32 rows of eight lanes; it takes `bits` vectors
// of eight words, and lane l of every row lies in lane l of a vector, so that packing needs shifts alone. Row 16 w + 4
// m + s (w < 2, m, s < 4) is in byte m of a word, so that a server which looks up bytes gets four rows at a time:
//   4 bits: vector 2 w + s / 2, from bit 8 m + 4 (s % 2)       2 bits: vector w, from bit 8 m + 2 s
//   1 bit: the only vector, bit 8 m + 4 w + s                  3 bits: the low two as 2 bits, then the high one as 1
//   bit
// byteps_like/compression/quantised/codes.py is the same in NumPy. For files in compression/loops only.
#pragma once

#include "compression/loops/vectors.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr uint32_t kGroup = 256;  // elements

// Packs a group; `code(row)` gives the codes of a row, called in the order of rows.
template <int kBits, typename Code>
BYTEPS_LIKE_INLINE void PackGroup(uint32_t* words, const Code& code) {
  Words single = {};
  for (uint32_t w = 0; w < 2; ++w) {
    Words pairs[2] = {};
#pragma GCC unroll 4
    for (uint32_t m = 0; m < 4; ++m) {
#pragma GCC unroll 4
      for (uint32_t s = 0; s < 4; ++s) {
        const Words z = code(16 * w + 4 * m + s);
        if (kBits == 4) pairs[s / 2] |= z << (8 * m + 4 * (s % 2));
        if (kBits == 2 || kBits == 3) pairs[0] |= (z & 3) << (8 * m + 2 * s);
        if (kBits % 2 == 1) single |= (z >> (kBits - 1)) << (8 * m + 4 * w + s);
      }
    }
    if (kBits == 4) Store(words + 16 * w, pairs[0]), Store(words + 16 * w + 8, pairs[1]);
    if (kBits == 2 || kBits == 3) Store(words + 8 * w, pairs[0]);
  }
  if (kBits % 2 == 1) Store(words + 8 * (kBits - 1), single);
}

// Row 16 w + 4 m + s, for all m at a time: its codes in the bytes of the words.
template <int kBits>
BYTEPS_LIKE_INLINE Words CodesOf(const uint32_t* words, uint32_t w, uint32_t s) {
  if (kBits == 4) return (Load<Words>(words + 16 * w + 8 * (s / 2)) >> (4 * (s % 2))) & 0x0F0F0F0Fu;
  Words codes = {};
  if (kBits != 1) codes = (Load<Words>(words + 8 * w) >> (2 * s)) & 0x03030303u;
  if (kBits != 2) {
    constexpr uint32_t kPlace = kBits - 1;
    const uint32_t from = 4 * w + s;
    const Words single = Load<Words>(words + 8 * kPlace);
    codes |= (from < kPlace ? single << (kPlace - from) : single >> (from - kPlace)) & (0x01010101u << kPlace);
  }
  return codes;
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
