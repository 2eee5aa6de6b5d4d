#include "compression/loops/fp8.h"

#include "compression/loops/bits.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr uint32_t kNotFinite = 255;

uint32_t ExponentOf(const float* x, size_t count, uint32_t top) {
  int32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<int32_t>(BitsOf(x[i]) & 0x7FFFFFFFu);
    most = magnitude > most ? magnitude : most;
  }
  if (most >= 0x7F800000) return kNotFinite;
  // Rounded up where the mantissa is above 1.75.
  const int32_t exponent = ((most + 0x1FFFFF) >> 23) - static_cast<int32_t>(top);
  return exponent < 1 ? 1u : static_cast<uint32_t>(exponent);
}

void ScaleBlock(const float* __restrict x, size_t count, uint32_t exponent, float* __restrict scaled) {
  const float inverse = FloatOf((254 - exponent) << 23);
  for (size_t i = 0; i < count; ++i) scaled[i] = x[i] * inverse;
}

void Scale(const float* x, size_t count, size_t block, uint32_t top, uint8_t* exponents, float* scaled) {
  for (size_t begin = 0; begin < count; begin += block, ++exponents) {
    const size_t size = count - begin < block ? count - begin : block;
    const uint32_t exponent = ExponentOf(x + begin, size, top);
    *exponents = static_cast<uint8_t>(exponent);
    if (exponent == kNotFinite)
      __builtin_memset(scaled + begin, 0, size * sizeof(float));
    else
      ScaleBlock(x + begin, size, exponent, scaled + begin);
  }
}

template <bool kAdd>
void UnscaleBlock(const float* __restrict values, size_t count, float step, float* __restrict sum) {
  for (size_t i = 0; i < count; ++i) sum[i] = (kAdd ? sum[i] : 0.0f) + step * values[i];
}

void Unscale(const float* values, size_t count, size_t block, const uint8_t* exponents, float factor, bool add,
             float* sum) {
  for (size_t begin = 0; begin < count; begin += block, ++exponents) {
    const size_t size = count - begin < block ? count - begin : block;
    const float step = factor * FloatOf(*exponents == kNotFinite ? 0x7FC00000u : uint32_t{*exponents} << 23);
    (add ? UnscaleBlock<true> : UnscaleBlock<false>)(values + begin, size, step, sum + begin);
  }
}

}  // namespace

extern const Fp8Loops kFp8;
const Fp8Loops kFp8 = {Scale, Unscale};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
