// Vectors of eight lanes for loops that the compiler makes no vectors of by itself: GNU's vector extension, so the same
// source serves every instruction set. For files in compression/loops only; all of it is local to the file.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define BYTEPS_LIKE_INLINE [[gnu::always_inline]] inline
#define BYTEPS_LIKE_ALWAYS __attribute__((always_inline))  // of a lambda

#pragma GCC diagnostic ignored "-Wpsabi"  // everything here is inlined: nothing is passed as a vector

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr size_t kWidth = 8;

typedef float Floats __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));

template <typename V>
BYTEPS_LIKE_INLINE V Load(const void* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <typename V>
BYTEPS_LIKE_INLINE void Store(void* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

BYTEPS_LIKE_INLINE Floats Splat(float value) { return Floats{value, value, value, value, value, value, value, value}; }
BYTEPS_LIKE_INLINE Words Bits(Floats value) { return reinterpret_cast<Words>(value); }
BYTEPS_LIKE_INLINE Floats FromBits(Words bits) { return reinterpret_cast<Floats>(bits); }

// Of each lane, the value if it is above (below) the bound, else the bound: so for NaN. GCC makes of comparisons wider
// than a register one per lane.
#if defined(__AVX__)
BYTEPS_LIKE_INLINE Floats AtLeast(Floats value, Floats bound) { return __builtin_ia32_maxps256(value, bound); }
BYTEPS_LIKE_INLINE Floats AtMost(Floats value, Floats bound) { return __builtin_ia32_minps256(value, bound); }
#else
typedef float HalfFloats __attribute__((vector_size(16)));
typedef uint32_t HalfWords __attribute__((vector_size(16)));

BYTEPS_LIKE_INLINE HalfFloats Chosen(HalfWords first, HalfFloats a, HalfFloats b) {
  return reinterpret_cast<HalfFloats>((reinterpret_cast<HalfWords>(a) & first) |
                                      (reinterpret_cast<HalfWords>(b) & ~first));
}

BYTEPS_LIKE_INLINE Floats AtLeast(Floats value, Floats bound) {
  HalfFloats a[2], b[2];
  __builtin_memcpy(a, &value, sizeof(a));
  __builtin_memcpy(b, &bound, sizeof(b));
  for (int i = 0; i < 2; ++i) a[i] = Chosen(reinterpret_cast<HalfWords>(a[i] > b[i]), a[i], b[i]);
  return Load<Floats>(a);
}

BYTEPS_LIKE_INLINE Floats AtMost(Floats value, Floats bound) {
  HalfFloats a[2], b[2];
  __builtin_memcpy(a, &value, sizeof(a));
  __builtin_memcpy(b, &bound, sizeof(b));
  for (int i = 0; i < 2; ++i) a[i] = Chosen(reinterpret_cast<HalfWords>(a[i] < b[i]), a[i], b[i]);
  return Load<Floats>(a);
}
#endif

// Words first to first + 7 of a stream (csrc/codec/random.h).
BYTEPS_LIKE_INLINE Words RandomWords(uint32_t low, uint32_t high, uint32_t first) {
  const Words index = Words{0, 1, 2, 3, 4, 5, 6, 7} + first;
  Words word = index * 0x9E3779B1u + low;
  word ^= word >> 16;
  word *= 0x21F0AAADu;
  word = (word ^ (word >> 15)) + high;
  word *= 0x735A2D97u;
  return word ^ (word >> 15);
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
