// Floats of 8 bits: computed in fp32 like those of 16, by integer arithmetic on the bits, since few CPUs convert them.
// The formats and their rounding are those of the Open Compute Project's "OCP 8-bit Floating Point Specification"
// (2023); as in torch 2.13, what is too large becomes infinity (E5M2) or, where there is none, the largest
// number (E4M3).
#pragma once

#include "csrc/kernels/lanes.h"

namespace byteps_like::kernels {
namespace BYTEPS_LIKE_ISA {
namespace {

// A sign, then an exponent of bias kBias, then kMantissa bits.
template <uint32_t kMantissa, uint32_t kBias, bool kHasInfinity>
struct Float8 : WideFloat32 {
  using Stored = uint8_t;
  static constexpr uint32_t kShift = 23 - kMantissa;
  static constexpr uint32_t kLeastNormal = (128 - kBias) << 23;                           // as fp32
  static constexpr uint32_t kBeyond = kHasInfinity ? 143u << 23 : 135u << 23 | 6u << 20;  // 65536; 448
  static constexpr uint32_t kInfinity = 0x7F800000u;

  static BYTEPS_LIKE_INLINE Floats Load(const uint8_t* from) {
    const Words bits = Widened(LoadAny<Bytes>(from));
    const Words magnitude = bits & 0x7Fu;
    const Words normal = (magnitude << kShift) + ((127 - kBias) << 23);
    // Without its leading one: 1.m - 1, which is exact, and right also where denormals of fp32 are taken for zero.
    const Words least = Words{} + kLeastNormal;
    const Words denormal =
        BitCast<Words>(BitCast<Floats>((magnitude << kShift) + kLeastNormal) - BitCast<Floats>(least));
    const Words finite = magnitude < (1u << kMantissa) ? denormal : normal;
    const Words special = kHasInfinity ? normal | kInfinity : Words{} + 0x7FC00000u;
    const Words value = magnitude >= (kHasInfinity ? 0x7Cu : 0x7Fu) ? special : finite;
    return BitCast<Floats>(value | ((bits & 0x80u) << 24));
  }

  static BYTEPS_LIKE_INLINE void Store(uint8_t* to, const Floats& value) {
    const Words bits = BitCast<Words>(value);
    const Words magnitude = bits & 0x7FFFFFFFu;
    const Words odd = (magnitude >> kShift) & 1u;
    const Words normal = (magnitude - ((127 - kBias) << 23) + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    // A number whose last place is that of the denormals: adding it rounds to them, to nearest even.
    const Words anchor = Words{} + ((151 - kBias - kMantissa) << 23);
    const Words denormal = BitCast<Words>(BitCast<Floats>(magnitude) + BitCast<Floats>(anchor)) - anchor;
    const Words finite = magnitude < kLeastNormal ? denormal : normal;
    const Words nan = Words{} + 0x7Fu;
    const Words large = Words{} + (kHasInfinity ? 0x7Cu : 0x7Eu);
    const Words beyond = magnitude > kInfinity ? nan : large;
    StoreAny(to, LowBytes((magnitude >= kBeyond ? beyond : finite) | ((bits >> 24) & 0x80u)));
  }
};
using Float8E4M3FN = Float8<3, 7, false>;
using Float8E5M2 = Float8<2, 15, true>;

template <>
struct AccumulatorFor<Float8E4M3FN> {
  using Type = WideFloat32;
};
template <>
struct AccumulatorFor<Float8E5M2> {
  using Type = WideFloat32;
};

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
