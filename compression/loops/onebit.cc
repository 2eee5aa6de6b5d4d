#include "compression/loops/onebit.h"

#include "compression/loops/bits.h"
#include "compression/loops/vectors.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr size_t kLanes = 16;

void Magnitude(const float* x, size_t count, double* lanes) {
  double sums[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane];
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(__builtin_fabsf(x[i + lane]));
  }
  for (; i < count; ++i) sums[i % kLanes] += static_cast<double>(__builtin_fabsf(x[i]));
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = sums[lane];
}

uint32_t SignOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits >> 31;
}

// Of 32 elements.
BYTEPS_LIKE_INLINE uint32_t SignsOf(const float* x) {
  uint32_t bits = 0;
#ifdef __AVX__
  for (uint32_t row = 0; row < 4; ++row)
    bits |= static_cast<uint32_t>(__builtin_ia32_movmskps256(Load<Floats>(x + row * kWidth))) << (row * kWidth);
#else
  for (uint32_t bit = 0; bit < 32; ++bit) bits |= SignOf(x[bit]) << bit;
#endif
  return bits;
}

typedef double Quads __attribute__((vector_size(32)));

BYTEPS_LIKE_INLINE Quads Magnitudes(const float* x) {
  typedef float Fours __attribute__((vector_size(16)));
  typedef uint64_t Longs __attribute__((vector_size(32)));
  const Quads wide = __builtin_convertvector(Load<Fours>(x), Quads);
  return reinterpret_cast<Quads>(reinterpret_cast<Longs>(wide) & ~(uint64_t{1} << 63));
}

void Pack(const float* __restrict x, size_t count, uint32_t* __restrict words) {
  const size_t whole = count / 32;
  for (size_t word = 0; word < whole; ++word) words[word] = SignsOf(x + 32 * word);
  if (count % 32 == 0) return;
  uint32_t bits = 0;
  for (size_t i = 32 * whole; i < count; ++i) bits |= SignOf(x[i]) << (i % 32);
  words[whole] = bits;
}

// Both of a word's 32 elements at once: arithmetic goes on while memory is read.
void PackAndSum(const float* x, size_t count, uint32_t* words, double* lanes) {
  Quads sums[kLanes / 4];
  __builtin_memcpy(sums, lanes, sizeof(sums));
  const size_t whole = count / 32 * 32;
  for (size_t i = 0; i < whole; i += 32) {
    FetchAhead(x + i, 32);
    words[i / 32] = SignsOf(x + i);
#pragma GCC unroll 8
    for (size_t part = 0; part < 32 / 4; ++part) sums[part % (kLanes / 4)] += Magnitudes(x + i + 4 * part);
  }
  __builtin_memcpy(lanes, sums, sizeof(sums));
  Pack(x + whole, count - whole, words + whole / 32);
  Magnitude(x + whole, count - whole, lanes);
}

float Signed(uint32_t word, uint32_t bit, uint32_t scale) {
  const uint32_t bits = scale ^ (((word >> bit) & 1u) << 31);
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

template <bool kAdd>
void UnpackInto(const uint32_t* __restrict words, size_t count, uint32_t scale, float* __restrict sum) {
  for (size_t i = 0; i < count / 32 * 32; i += 32) {
    const uint32_t word = words[i / 32];
    for (uint32_t bit = 0; bit < 32; ++bit) sum[i + bit] = (kAdd ? sum[i + bit] : 0.0f) + Signed(word, bit, scale);
  }
  for (size_t i = count / 32 * 32; i < count; ++i)
    sum[i] = (kAdd ? sum[i] : 0.0f) + Signed(words[i / 32], i % 32, scale);
}

void Unpack(const uint32_t* words, size_t count, float scale, bool add, float* sum) {
  uint32_t bits;
  __builtin_memcpy(&bits, &scale, sizeof(bits));
  (add ? UnpackInto<true> : UnpackInto<false>)(words, count, bits, sum);
}

}  // namespace

extern const OnebitLoops kOnebit;
const OnebitLoops kOnebit = {Pack, PackAndSum, Unpack};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
