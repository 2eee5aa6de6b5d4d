// Counter-based random numbers: the i-th of a stream is a function of the stream and i, the same on every CPU and GPU
// and in NumPy (byteps_like/compression/random.py), in any order. Two rounds of a multiply-xorshift hash (constants:
// Wellons, "Prospecting for hash functions", 2018) with a word of the stream mixed into each; not for secrets.
#pragma once

#include <cstdint>

#include "csrc/codec/codec.h"

namespace byteps_like {

struct Stream64 {  // of random words
  uint32_t low = 0, high = 0;
};

// splitmix64's finalizer (Steele et al., 2014).
constexpr uint64_t Mix64(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
  return word ^ (word >> 31);
}

// `purpose` keeps a codec's streams apart (rotation, rounding, ...); `shared`: the same on all ranks.
constexpr Stream64 StreamOf(uint64_t seed, const Draw& draw, uint32_t purpose, bool shared) {
  uint64_t word = Mix64(seed + 0x9E3779B97F4A7C15ull);
  word = Mix64(word ^ draw.key);
  word = Mix64(word ^ (uint64_t{draw.round} << 32 | purpose));
  word = Mix64(word ^ (shared ? 0 : uint64_t{draw.rank} + 1));
  return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
}

// The i-th word.
constexpr uint32_t RandomWord(const Stream64& stream, uint32_t i) {
  uint32_t word = i * 0x9E3779B1u + stream.low;
  word ^= word >> 16;
  word *= 0x21F0AAADu;
  word = (word ^ (word >> 15)) + stream.high;
  word *= 0x735A2D97u;
  return word ^ (word >> 15);
}

// In [0, 1), in steps of 2^-24.
constexpr float ToUnit(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace byteps_like
