#include "compression/loops/vote.h"

#include "compression/loops/bits.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr size_t kWords = 64;  // at a time: in registers or the nearest cache

// Adds the carries to a plane; they become what it carries over.
BYTEPS_LIKE_LOOP void AddToPlane(uint32_t* __restrict plane, uint32_t* __restrict carries, size_t words_count) {
  for (size_t i = 0; i < words_count; ++i) {
    const uint32_t before = plane[i];
    plane[i] = before ^ carries[i];
    carries[i] &= before;
  }
}

void Count(const uint32_t* words, size_t words_count, uint32_t planes_count, uint32_t* planes) {
  uint32_t carries[kWords];
  for (size_t begin = 0; begin < words_count; begin += kWords) {
    const size_t size = words_count - begin < kWords ? words_count - begin : kWords;
    __builtin_memcpy(carries, words + begin, size * sizeof(uint32_t));
    for (uint32_t plane = 0; plane < planes_count; ++plane) {
      uint32_t* const at = planes + plane * words_count + begin;
      if (size == kWords)
        AddToPlane(at, carries, kWords);
      else
        AddToPlane(at, carries, size);
    }
  }
}

// From the highest bit down: above is set once a counter exceeds `half`, equal stays while it doesn't differ.
BYTEPS_LIKE_LOOP void Compare(const uint32_t* __restrict plane, uint32_t bit, size_t words_count,
                              uint32_t* __restrict above, uint32_t* __restrict equal) {
  const uint32_t wanted = bit ? ~0u : 0u;
  for (size_t i = 0; i < words_count; ++i) {
    above[i] |= equal[i] & plane[i] & ~wanted;
    equal[i] &= ~(plane[i] ^ wanted);
  }
}

void Decide(const uint32_t* planes, size_t words_count, uint32_t planes_count, uint32_t half, bool ties, uint32_t low,
            uint32_t high, uint32_t* winners) {
  uint32_t above[kWords], equal[kWords];
  for (size_t begin = 0; begin < words_count; begin += kWords) {
    const size_t size = words_count - begin < kWords ? words_count - begin : kWords;
    __builtin_memset(above, 0, sizeof(above));
    __builtin_memset(equal, 0xFF, sizeof(equal));
    for (uint32_t plane = planes_count; plane-- > 0;)
      Compare(planes + plane * words_count + begin, (half >> plane) & 1u, size, above, equal);
    for (size_t i = 0; i < size; ++i)
      winners[begin + i] = above[i] | (ties ? equal[i] & WordAt(low, high, static_cast<uint32_t>(begin + i)) : 0u);
  }
}

}  // namespace

extern const VoteLoops kVote;
const VoteLoops kVote = {Count, Decide};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
