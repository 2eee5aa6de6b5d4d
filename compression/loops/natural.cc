#include "compression/loops/natural.h"

#include "compression/loops/bits.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

// The fraction is how far a number is between two powers of two: adding 23 random bits to it carries into the exponent
// with that probability. So do denormals, between 0 and the least normal number.
void Pack(const float* __restrict x, size_t count, uint32_t low, uint32_t high, uint8_t* __restrict exponents) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = BitsOf(x[i]) & 0x7FFFFFFFu;
    const auto rounded = static_cast<int32_t>((magnitude + (WordAt(low, high, static_cast<uint32_t>(i)) >> 9)) >> 23);
    const int32_t most = static_cast<int32_t>(magnitude) >= 0x7F800000 ? 255 : 254;
    exponents[i] = static_cast<uint8_t>(rounded < most ? rounded : most);
  }
}

BYTEPS_LIKE_LOOP float Value(uint32_t word, uint32_t bit, uint8_t exponent) {
  return FloatOf((((word >> bit) & 1u) << 31) | (static_cast<uint32_t>(exponent) << 23));
}

template <bool kAdd>
void UnpackInto(const uint32_t* __restrict signs, const uint8_t* __restrict exponents, size_t count, float factor,
                float* __restrict sum) {
  const size_t whole = count / 32 * 32;
  for (size_t i = 0; i < whole; i += 32) {
    const uint32_t word = signs[i / 32];
    for (uint32_t bit = 0; bit < 32; ++bit)
      sum[i + bit] = (kAdd ? sum[i + bit] : 0.0f) + factor * Value(word, bit, exponents[i + bit]);
  }
  for (size_t i = whole; i < count; ++i)
    sum[i] = (kAdd ? sum[i] : 0.0f) + factor * Value(signs[i / 32], i % 32, exponents[i]);
}

void Unpack(const uint32_t* signs, const uint8_t* exponents, size_t count, float factor, bool add, float* sum) {
  (add ? UnpackInto<true> : UnpackInto<false>)(signs, exponents, count, factor, sum);
}

}  // namespace

extern const NaturalLoops kNatural;
const NaturalLoops kNatural = {Pack, Unpack};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
