// Bits of floats, and random words as csrc/codec/random.h makes them, for files of compression/loops: with internal
// linkage, since each is compiled for several instruction sets.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define BYTEPS_LIKE_LOOP inline __attribute__((always_inline))

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

BYTEPS_LIKE_LOOP uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

BYTEPS_LIKE_LOOP float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

BYTEPS_LIKE_LOOP uint32_t WordAt(uint32_t low, uint32_t high, uint32_t i) {
  uint32_t word = i * 0x9E3779B1u + low;
  word ^= word >> 16;
  word *= 0x21F0AAADu;
  word = (word ^ (word >> 15)) + high;
  word *= 0x735A2D97u;
  return word ^ (word >> 15);
}

BYTEPS_LIKE_LOOP float Unit(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f; }
BYTEPS_LIKE_LOOP float UnitAt(uint32_t low, uint32_t high, uint32_t i) { return Unit(WordAt(low, high, i)); }

// Elements that are computed keep a core from reading on by itself: what comes next is asked for meanwhile.
BYTEPS_LIKE_LOOP void FetchAhead(const float* x, size_t count) {
  constexpr size_t kAhead = 512, kLine = 16;
  for (size_t i = 0; i < count; i += kLine) __builtin_prefetch(x + kAhead + i);
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
