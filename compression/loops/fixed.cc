#include "compression/loops/fixed.h"

#include "compression/loops/bits.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

uint32_t Magnitude(const float* x, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<int32_t>(BitsOf(x[i]) & 0x7FFFFFFFu);
    most = magnitude > most ? magnitude : most;
  }
  return static_cast<uint32_t>(most);
}

// To the nearest integer, ties to even. Below 2^23 adding that number rounds; from there on all floats are integers.
BYTEPS_LIKE_LOOP int32_t Rounded(float value) {
  const uint32_t magnitude = BitsOf(value) & 0x7FFFFFFFu;
  const uint32_t rounded = BitsOf((FloatOf(magnitude) + 0x1p23f) - 0x1p23f);
  // By mask: a choice would keep the compiler from making vectors.
  const uint32_t is_small = static_cast<uint32_t>((static_cast<int32_t>(magnitude) - 0x4B000000) >> 31);
  const auto integer = static_cast<int32_t>(FloatOf((rounded & is_small) | (magnitude & ~is_small)));
  const int32_t sign = static_cast<int32_t>(BitsOf(value)) >> 31;
  return (integer ^ sign) - sign;
}

template <typename T>
void EncodeTo(const float* __restrict x, size_t count, float scale, T* __restrict integers) {
  for (size_t i = 0; i < count; ++i) integers[i] = static_cast<T>(Rounded(x[i] * scale));
}

void Encode(const float* x, size_t count, float scale, uint32_t width, void* integers) {
  if (width == 2) return EncodeTo(x, count, scale, static_cast<int16_t*>(integers));
  EncodeTo(x, count, scale, static_cast<int32_t*>(integers));
}

// Results come at any address.
template <typename T, bool kAdd>
void DecodeFrom(const void* __restrict from, size_t count, float step, float factor, float* __restrict out) {
  const auto* const bytes = static_cast<const char*>(from);
  for (size_t i = 0; i < count; ++i) {
    T integer;
    __builtin_memcpy(&integer, bytes + i * sizeof(T), sizeof(T));
    out[i] = (kAdd ? out[i] : 0.0f) + (static_cast<float>(integer) * factor) * step;
  }
}

void Decode(const void* integers, size_t count, uint32_t width, float step, float factor, bool add, float* out) {
  if (width == 2)
    return (add ? DecodeFrom<int16_t, true> : DecodeFrom<int16_t, false>)(integers, count, step, factor, out);
  (add ? DecodeFrom<int32_t, true> : DecodeFrom<int32_t, false>)(integers, count, step, factor, out);
}

}  // namespace

extern const FixedLoops kFixed;
const FixedLoops kFixed = {Magnitude, Encode, Decode};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
