// The loops of sign: counters in slices, one plane of words for each of their bits, 32 elements in a word.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like {

struct VoteLoops {
  // Adds bit i of `words` to counter i. Planes, `words_count` words each, from the lowest bit up; they wrap.
  void (*count)(const uint32_t* words, size_t words_count, uint32_t planes_count, uint32_t* planes);
  // Bit i of `winners`: whether counter i is above `half`; where it is just `half` and `ties` (`voters` are even), a
  // coin: bit i of the stream of random words that `low` and `high` name.
  void (*decide)(const uint32_t* planes, size_t words_count, uint32_t planes_count, uint32_t half, bool ties,
                 uint32_t low, uint32_t high, uint32_t* winners);
};

}  // namespace byteps_like
