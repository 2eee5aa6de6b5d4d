#include "compression/loops/eden.h"

#include "compression/loops/codes.h"
#include "compression/loops/vectors.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr uint32_t kSign = 0x80000000u;

BYTEPS_LIKE_INLINE Floats LookUp(Floats magnitudes, Words index) {
#ifdef __AVX2__
  return __builtin_ia32_permvarsf256(magnitudes, reinterpret_cast<Ints>(index));
#else
  Floats found;
  for (size_t lane = 0; lane < kWidth; ++lane) found[lane] = magnitudes[index[lane] & 7];
  return found;
#endif
}

// The values that codes stand for.
template <int kBits>
BYTEPS_LIKE_INLINE Floats PointsOf(Floats magnitudes, Words codes) {
  const Words signs = (codes << (32 - kBits)) & kSign;
  if (kBits == 1) return FromBits(Bits(Splat(magnitudes[0])) | signs);
  return FromBits(Bits(LookUp(magnitudes, codes & ((1u << (kBits - 1)) - 1))) | signs);
}

template <int kBits>
void QuantiseBits(const float* block, size_t groups, const float* limits, const float* magnitudes, uint32_t* codes,
                  double* lanes) {
  const auto entries = Load<Floats>(magnitudes);
  Doubles sums[2] = {Load<Doubles>(lanes), Load<Doubles>(lanes + kWidth)};
  for (size_t group = 0; group < groups; ++group, block += kGroup, codes += kBits * kWidth)
    PackGroup<kBits>(codes, [&](uint32_t row) BYTEPS_LIKE_ALWAYS {
      const auto x = Load<Floats>(block + row * kWidth);
      const Ints magnitude = reinterpret_cast<Ints>(Bits(x) & ~kSign);
      Words code = (Bits(x) & kSign) >> (32 - kBits);
#pragma GCC unroll 7
      for (int k = 0; k < (1 << (kBits - 1)) - 1; ++k) {
        // Floats without signs compare as integers do; the difference's sign says which is larger.
        const Ints limit = reinterpret_cast<Ints>(Splat(limits[k]));
        code += reinterpret_cast<Words>(limit - magnitude) >> 31;
      }
      const Floats point = PointsOf<kBits>(entries, code);
      sums[row % 2] += __builtin_convertvector(x, Doubles) * __builtin_convertvector(point, Doubles);
      return code;
    });
  Store(lanes, sums[0]);
  Store(lanes + kWidth, sums[1]);
}

template <int kBits>
void PointsBits(const uint32_t* codes, size_t groups, const float* magnitudes, float* block) {
  const auto entries = Load<Floats>(magnitudes);
  for (size_t group = 0; group < groups; ++group, block += kGroup, codes += kBits * kWidth)
#pragma GCC unroll 8
    for (uint32_t vector = 0; vector < 8; ++vector) {
      const Words packed = CodesOf<kBits>(codes, vector / 4, vector % 4);
#pragma GCC unroll 4
      for (uint32_t m = 0; m < 4; ++m)
        Store(block + (16 * (vector / 4) + 4 * m + vector % 4) * kWidth,
              PointsOf<kBits>(entries, (packed >> (8 * m)) & 0xFF));
    }
}

void Quantise(const float* block, size_t groups, int bits, const float* limits, const float* magnitudes,
              uint32_t* codes, double* lanes) {
  (bits == 1   ? QuantiseBits<1>
   : bits == 2 ? QuantiseBits<2>
   : bits == 3 ? QuantiseBits<3>
               : QuantiseBits<4>)(block, groups, limits, magnitudes, codes, lanes);
}

void Points(const uint32_t* codes, size_t groups, int bits, const float* magnitudes, float* block) {
  (bits == 1   ? PointsBits<1>
   : bits == 2 ? PointsBits<2>
   : bits == 3 ? PointsBits<3>
               : PointsBits<4>)(codes, groups, magnitudes, block);
}

}  // namespace

extern const EdenLoops kEden;
const EdenLoops kEden = {Quantise, Points};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
