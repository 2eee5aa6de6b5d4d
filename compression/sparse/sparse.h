// Loops, bits and payload fields that the sparse codecs share.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "compression/loops.h"
#include "compression/loops/sparse.h"
#include "csrc/base/status.h"
#include "csrc/codec/merge.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(SparseLoops, kSparse)

inline constexpr uint32_t kHead = 4;                     // bytes: the count with which a payload begins
inline constexpr uint32_t kWholePartition = 0xFFFFFFFF;  // in place of a count: all elements follow

constexpr uint32_t Rounded(uint32_t value, uint32_t grain) { return value / grain + (value % grain != 0); }
constexpr uint32_t WordsOf(uint32_t bits) { return Rounded(bits, 32); }
constexpr bool IsSet(const uint32_t* words, uint32_t bit) { return (words[bit / 32] >> (bit % 32) & 1u) != 0; }

// Those of the last word of `bits` bits that mean something.
constexpr uint32_t LastWordMask(uint32_t bits) { return bits % 32 == 0 ? ~0u : (1u << bits % 32) - 1; }

// `bits` bits in which none is set beyond the end.
uint32_t CountBits(const uint32_t* words, uint32_t bits);

// Calls visit(bit) for each that is set, in order.
template <typename Visit>
void EachBit(const uint32_t* words, uint32_t bits, Visit visit) {
  for (uint32_t word = 0; word < WordsOf(bits); ++word)
    for (uint32_t left = words[word]; left != 0; left &= left - 1) visit(32 * word + std::countr_zero(left));
}

inline uint32_t ReadWord(const std::byte* in) {
  uint32_t word;
  std::memcpy(&word, in, sizeof(word));
  return word;
}

inline const uint32_t* AsWords(const std::byte* in) { return reinterpret_cast<const uint32_t*>(in); }
inline uint32_t* AsWords(std::byte* out) { return reinterpret_cast<uint32_t*>(out); }
inline const float* AsFloats(const std::byte* in) { return reinterpret_cast<const float*>(in); }
inline float* AsFloats(std::byte* out) { return reinterpret_cast<float*>(out); }

inline Status CorruptPayload(const char* codec, const char* what) {
  return Status(Code::kCorrupt, std::string(codec) + ": " + what);
}

// Ascending and below `numel`.
bool AreIndices(std::span<const uint32_t> indices, uint32_t numel);

// The first from `from` on that is set; kNoUnit: there is none.
inline uint32_t NextBit(const uint32_t* words, uint32_t from, uint32_t bits) {
  uint32_t mask = ~0u << from % 32;
  for (uint32_t word = from / 32; word < WordsOf(bits); ++word, mask = ~0u)
    if (const uint32_t left = words[word] & mask; left != 0) return 32 * word + std::countr_zero(left);
  return kNoUnit;
}

// The server's state for a mergeable codec: sums, a bit for each of `units` that is in an index, and one for each unit
// that has received a value. Sums without the latter bit are meaningless, so a new round only has to clear bits.
struct UnionSum {
  UnionSum(std::byte* accumulator, uint32_t numel, uint32_t units)
      : sums(AsFloats(accumulator)), wanted(AsWords(accumulator) + numel), came(wanted + WordsOf(units)) {}
  UnionSum(const std::byte* accumulator, uint32_t numel, uint32_t units)
      : UnionSum(const_cast<std::byte*>(accumulator), numel, units) {}
  static uint64_t Bytes(uint32_t numel, uint32_t units) { return (uint64_t{numel} + 2 * uint64_t{WordsOf(units)}) * 4; }

  void Clear(uint32_t units) const { std::memset(wanted, 0, size_t{WordsOf(units)} * 8); }
  // All of them are in an index.
  void WantAll(uint32_t units) const {
    std::memset(wanted, 0xFF, size_t{WordsOf(units)} * 4);
    wanted[WordsOf(units) - 1] = LastWordMask(units);
  }
  // True if none of it had come before.
  bool IsFirst(uint32_t unit) const {
    const bool is_first = !IsSet(came, unit);
    came[unit / 32] |= 1u << unit % 32;
    return is_first;
  }

  float* const sums;
  uint32_t* const wanted;
  uint32_t* const came;
};

}  // namespace byteps_like
