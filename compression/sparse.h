// What the sparse codecs share: their loops, bits and fields of payloads.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "compression/loops.h"
#include "compression/loops/sparse.h"
#include "csrc/base/status.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(SparseLoops, kSparse)

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

// What the server of a mergeable codec keeps: sums, and a bit for each of `units` that has come. Sums without a bit
// mean nothing, so that a new round begins by clearing the bits alone.
struct UnionSum {
  UnionSum(std::byte* accumulator, uint32_t numel) : sums(AsFloats(accumulator)), bits(AsWords(accumulator) + numel) {}
  static uint64_t Bytes(uint32_t numel, uint32_t units) { return (uint64_t{numel} + WordsOf(units)) * 4; }

  // True if it wasn't set before.
  bool Mark(uint32_t unit) const {
    const bool is_new = !IsSet(bits, unit);
    bits[unit / 32] |= 1u << unit % 32;
    return is_new;
  }

  float* const sums;
  uint32_t* const bits;
};

}  // namespace byteps_like
