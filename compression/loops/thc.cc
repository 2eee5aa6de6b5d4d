#include "compression/loops/thc.h"

#include "compression/loops/codes.h"
#include "compression/loops/vectors.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

// kRamps: how many, known to the compiler; 0: `count` of them.
template <int kBits, int kRamps>
void QuantiseWith(const float* block, size_t groups, const ThcRamp* ramps, size_t count, const uint32_t* stream,
                  uint32_t first, uint32_t* codes) {
  const size_t number = kRamps == 0 ? count : kRamps;
  const uint32_t low = stream[0], high = stream[1];
  for (size_t group = 0; group < groups; ++group, block += kGroup, codes += kBits * kWidth) {
    const auto word = static_cast<uint32_t>((first + group) * (kGroup / 2));
    Words halves = {};
    PackGroup<kBits>(codes, [&](uint32_t row) BYTEPS_LIKE_ALWAYS {
      const Floats x = Load<Floats>(block + row * kWidth);
      Floats place = Splat(0.5f);
      for (size_t k = 0; k < number; ++k) {
        const Floats on_ramp = x * ramps[k].multiplier + ramps[k].offset;
        place += AtMost(AtLeast(on_ramp, Floats{}), Splat(ramps[k].top));
      }
      if (row % 2 == 0) halves = RandomWords(low, high, word + row / 2 * kWidth);
      const Words half = row % 2 == 0 ? halves & 0xFFFF : halves >> 16;
      return (reinterpret_cast<Words>(__builtin_convertvector(place, Ints)) + half) >> 16;
    });
  }
}

template <int kBits>
void QuantiseBits(const float* block, size_t groups, const ThcRamp* ramps, size_t count, const uint32_t* stream,
                  uint32_t first, uint32_t* codes) {
  (count == 1   ? QuantiseWith<kBits, 1>
   : count == 3 ? QuantiseWith<kBits, 3>
                : QuantiseWith<kBits, 0>)(block, groups, ramps, count, stream, first, codes);
}

void Quantise(const float* block, size_t groups, const ThcRamp* ramps, size_t count, int bits, const uint32_t* stream,
              uint32_t first, uint32_t* codes) {
  (bits == 4   ? QuantiseBits<4>
   : bits == 3 ? QuantiseBits<3>
               : QuantiseBits<2>)(block, groups, ramps, count, stream, first, codes);
}

typedef uint8_t Octets __attribute__((vector_size(32)));
typedef uint16_t Shorts __attribute__((vector_size(32)));

// Of each byte of `codes`, below 16, the entry; `table` is there twice.
BYTEPS_LIKE_INLINE Octets LookUp(Octets table, Words codes) {
  const auto index = reinterpret_cast<Octets>(codes);
#ifdef __AVX2__
  typedef char Chars __attribute__((vector_size(32)));
  return reinterpret_cast<Octets>(
      __builtin_ia32_pshufb256(reinterpret_cast<Chars>(table), reinterpret_cast<Chars>(index)));
#else
  Octets found;
  for (int i = 0; i < 32; ++i) found[i] = table[index[i]];
  return found;
#endif
}

Octets Twice(const uint8_t* table) {
  uint8_t twice[32];
  for (int i = 0; i < 32; ++i) twice[i] = table[i % 16];
  return Load<Octets>(twice);
}

template <int kBits>
void Accumulate8With(const uint32_t* codes, size_t groups, const uint8_t* table, uint8_t* sums) {
  const Octets entries = Twice(table);
  for (size_t group = 0; group < groups; ++group, codes += kBits * kWidth)
#pragma GCC unroll 8
    for (uint32_t vector = 0; vector < 8; ++vector, sums += 32) {
      const Octets points = LookUp(entries, CodesOf<kBits>(codes, vector / 4, vector % 4));
      Store(sums, Load<Octets>(sums) + points);
    }
}

template <int kBits>
void Accumulate16With(const uint32_t* codes, size_t groups, const uint8_t* table, uint16_t* sums) {
  const Octets entries = Twice(table);
  for (size_t group = 0; group < groups; ++group, codes += kBits * kWidth)
#pragma GCC unroll 8
    for (uint32_t vector = 0; vector < 8; ++vector, sums += 32) {
      const auto points = reinterpret_cast<Shorts>(LookUp(entries, CodesOf<kBits>(codes, vector / 4, vector % 4)));
      Store(sums, Load<Shorts>(sums) + (points & 0xFF));
      Store(sums + 16, Load<Shorts>(sums + 16) + (points >> 8));
    }
}

void Accumulate8(const uint32_t* codes, size_t groups, int bits, const uint8_t* table, uint8_t* sums) {
  (bits == 4 ? Accumulate8With<4> : bits == 3 ? Accumulate8With<3> : Accumulate8With<2>)(codes, groups, table, sums);
}

void Accumulate16(const uint32_t* codes, size_t groups, int bits, const uint8_t* table, uint16_t* sums) {
  (bits == 4 ? Accumulate16With<4> : bits == 3 ? Accumulate16With<3> : Accumulate16With<2>)(codes, groups, table, sums);
}

BYTEPS_LIKE_INLINE void StoreCentred(Words sums, float offset, float* row) {
  const Floats wide = __builtin_convertvector(reinterpret_cast<Ints>(sums), Floats);
  Store(row, (wide + wide) - offset);
}

void Centre8(const uint8_t* sums, size_t groups, float offset, float* block) {
  for (size_t group = 0; group < groups; ++group, block += kGroup)
#pragma GCC unroll 8
    for (uint32_t vector = 0; vector < 8; ++vector, sums += 32) {
      const Words packed = Load<Words>(sums);
#pragma GCC unroll 4
      for (uint32_t m = 0; m < 4; ++m)
        StoreCentred((packed >> (8 * m)) & 0xFF, offset, block + (16 * (vector / 4) + 4 * m + vector % 4) * kWidth);
    }
}

void Centre16(const uint16_t* sums, size_t groups, float offset, float* block) {
  for (size_t group = 0; group < groups; ++group, block += kGroup)
    for (uint32_t vector = 0; vector < 8; ++vector)
      for (uint32_t parity = 0; parity < 2; ++parity, sums += 16) {
        const Words packed = Load<Words>(sums);
        float* const row = block + (16 * (vector / 4) + 4 * parity + vector % 4) * kWidth;
        StoreCentred(packed & 0xFFFF, offset, row);
        StoreCentred(packed >> 16, offset, row + 8 * kWidth);
      }
}

size_t Beyond(const float* block, size_t count, float limit) {
  size_t found = 0;
  for (size_t begin = 0; begin < count; begin += kGroup) {
    uint32_t more = 0;
    for (size_t i = begin; i < begin + kGroup; ++i) more += __builtin_fabsf(block[i]) > limit ? 1 : 0;
    found += more;
  }
  return found;
}

}  // namespace

extern const ThcLoops kThc;
const ThcLoops kThc = {Quantise, Accumulate8, Accumulate16, Centre8, Centre16, Beyond};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
