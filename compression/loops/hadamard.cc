#include "compression/loops/hadamard.h"

#include "compression/loops/vectors.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr size_t kGroup = 256;     // elements
constexpr size_t kInCache = 4096;  // elements that are transformed before their neighbours: they stay in the L1 cache
constexpr size_t kLanes = 16;

void Squares(const float* x, size_t count, double* lanes) {
  double sums[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane];
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(x[i + lane]);
      sums[lane] += value * value;
    }
  for (; i < count; ++i) sums[i % kLanes] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = sums[lane];
}

template <bool kBase>
void FlipGroups(const float* x, size_t groups, const uint32_t* stream, uint32_t first, float factor, const float* base,
                float* out) {
  const Words factors = Bits(Splat(factor));
  for (size_t group = 0; group < groups; ++group) {
    const Words signs = RandomWords(stream[0], stream[1], static_cast<uint32_t>((first + group) * kWidth));
    const size_t begin = group * kGroup;
#pragma GCC unroll 32
    for (uint32_t row = 0; row < 32; ++row) {
      const size_t at = begin + row * kWidth;
      const Floats factor_of = FromBits(factors ^ ((signs << (31 - row)) & 0x80000000u));
      const Floats value = Load<Floats>(x + at) * factor_of;
      Store(out + at, (kBase ? Load<Floats>(base + at) : Floats{}) + value);
    }
  }
}

void Flip(const float* x, size_t count, const uint32_t* stream, uint32_t first, float factor, const float* base,
          float* out) {
  const size_t groups = count / kGroup;
  (base != nullptr ? FlipGroups<true> : FlipGroups<false>)(x, groups, stream, first, factor, base, out);
  const size_t begin = groups * kGroup;
  if (begin == count) return;
  uint32_t signs[kWidth];
  Store(signs, RandomWords(stream[0], stream[1], static_cast<uint32_t>((first + groups) * kWidth)));
  for (size_t i = begin; i < count; ++i) {
    const bool minus = signs[i % kWidth] >> ((i - begin) / kWidth) & 1;
    out[i] = (base != nullptr ? base[i] : 0.0f) + x[i] * (minus ? -factor : factor);
  }
}

// Strides 1, 2, ... kCount / 2 across vectors.
template <size_t kCount>
BYTEPS_LIKE_INLINE void Butterflies(Floats* v) {
#pragma GCC unroll 3
  for (size_t stride = 1; stride < kCount; stride *= 2)
#pragma GCC unroll 8
    for (size_t i = 0; i < kCount; ++i)
      if ((i & stride) == 0) {
        const Floats a = v[i], b = v[i + stride];
        v[i] = a + b;
        v[i + stride] = a - b;
      }
}

// Strides 1, 2, 4 within a vector: (a, b) -> (b, a) + (a, -b).
BYTEPS_LIKE_INLINE Floats Within(Floats v) {
  constexpr uint32_t kMinus = 0x80000000u;
  v = __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6) +
      FromBits(Bits(v) ^ Words{0, kMinus, 0, kMinus, 0, kMinus, 0, kMinus});
  v = __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5) +
      FromBits(Bits(v) ^ Words{0, 0, kMinus, kMinus, 0, 0, kMinus, kMinus});
  return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3) +
         FromBits(Bits(v) ^ Words{0, 0, 0, 0, kMinus, kMinus, kMinus, kMinus});
}

// Strides below 64, in registers.
void Lowest(float* block, size_t count) {
  for (size_t begin = 0; begin < count; begin += 64) {
    Floats v[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) v[i] = Load<Floats>(block + begin + i * kWidth);
    Butterflies<8>(v);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) Store(block + begin + i * kWidth, Within(v[i]));
  }
}

// Strides `stride` to stride * kRadix / 2 in one pass.
template <size_t kRadix>
void Sweep(float* block, size_t count, size_t stride) {
  for (size_t begin = 0; begin < count; begin += kRadix * stride)
    for (size_t i = begin; i < begin + stride; i += kWidth) {
      Floats v[kRadix];
#pragma GCC unroll 8
      for (size_t k = 0; k < kRadix; ++k) v[k] = Load<Floats>(block + i + k * stride);
      Butterflies<kRadix>(v);
#pragma GCC unroll 8
      for (size_t k = 0; k < kRadix; ++k) Store(block + i + k * stride, v[k]);
    }
}

// Strides from `stride` up.
void Sweeps(float* block, size_t count, size_t stride) {
  while (stride < count) {
    const size_t left = count / stride;
    (left >= 8 ? Sweep<8> : left == 4 ? Sweep<4> : Sweep<2>)(block, count, stride);
    stride *= left >= 8 ? 8 : left;
  }
}

void Transform(float* block, size_t count) {
  const size_t part = count < kInCache ? count : kInCache;
  for (size_t begin = 0; begin < count; begin += part) {
    Lowest(block + begin, part);
    Sweeps(block + begin, part, 64);
  }
  Sweeps(block, count, part);
}

}  // namespace

extern const HadamardLoops kHadamard;
const HadamardLoops kHadamard = {Squares, Flip, Transform};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
