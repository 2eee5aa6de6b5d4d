// Integers divided by one number after another: value / divisor, rounded towards zero. No CPU divides vectors of them,
// so that each is multiplied by a factor that is made once for a call.
#pragma once

#include "csrc/kernels/lanes.h"

namespace byteps_like::kernels {
namespace BYTEPS_LIKE_ISA {
namespace {

template <bool kFirst, typename First, typename Second>
struct Choose {
  using Type = First;
};
template <typename First, typename Second>
struct Choose<false, First, Second> {
  using Type = Second;
};

template <typename T>
inline constexpr bool kIsUnsigned = static_cast<T>(-1) > T{0};

// By a power of two: a shift alone would round negative numbers down.
template <typename T>
struct Shift {
  using Wide = typename Choose<sizeof(T) == 8, int64_t, int32_t>::Type;
  explicit Shift(uint32_t divisor) : log2(__builtin_ctz(divisor)), below(static_cast<Wide>(divisor - 1)) {}
  BYTEPS_LIKE_INLINE T operator()(T value) const {
    constexpr int kMost = 8 * sizeof(Wide) - 1;
    const int shift = log2 < kMost ? log2 : kMost;
    if constexpr (kIsUnsigned<T>) return static_cast<T>(value >> shift);
    const Wide wide = value;
    return static_cast<T>((wide + (wide < 0 ? below : 0)) >> shift);
  }
  const int log2;
  const Wide below;
};

// By any other number. 8 bits: the upper half of the product with 2^16 / divisor, rounded up. Up to divisors of 2^8
// what that is too large by is less than 1 / divisor: so what is whole stays so, and what is not, being 1 / divisor or
// more below the next number, stays below it. Of larger ones the product is less than 2^16. Upper halves are rounded
// down.
template <typename T>
struct ShortQuotient {
  using Half = typename Choose<kIsUnsigned<T>, uint16_t, int16_t>::Type;
  using Product = typename Choose<kIsUnsigned<T>, uint32_t, int32_t>::Type;
  explicit ShortQuotient(uint32_t divisor) : factor(static_cast<Half>(0xFFFF / divisor + 1)) {}
  BYTEPS_LIKE_INLINE T operator()(T value) const {
    const Half wide = value;
    const auto upper = static_cast<Half>((static_cast<Product>(wide) * factor) >> 16);
    return static_cast<T>(upper + (wide < 0));
  }
  const Half factor;
};

// 16 and 32 bits: the product with a reciprocal in floating point that is, with all rounding, too large by a share of
// at most 2^-21 in float (for 16 bits) and 2^-49 in double (for 32): less than 1 / divisor again.
template <typename T>
struct RealQuotient {
  using Real = typename Choose<sizeof(T) == 2, float, double>::Type;
  static constexpr Real kExcess = sizeof(T) == 2 ? 0x1p-22f : 0x1p-50;
  explicit RealQuotient(uint32_t divisor) : reciprocal(1 / static_cast<Real>(divisor) * (1 + kExcess)) {}
  BYTEPS_LIKE_INLINE T operator()(T value) const {
    return static_cast<T>(static_cast<int32_t>(ToReal(value) * reciprocal));  // fits: the divisor is 3 or more
  }
  static BYTEPS_LIKE_INLINE Real ToReal(T value) {
    if constexpr (sizeof(T) == 2 || !kIsUnsigned<T>) return static_cast<Real>(value);
    return static_cast<Real>(static_cast<int32_t>(value ^ (1u << 31))) +
           0x1p31f;  // only signed ones are converted fast
  }
  const Real reciprocal;
};

// 64 bits: the upper half of the product with a factor of 65 bits, 2^(64 + bits) / divisor rounded up, whose first bit
// is an addition. Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (PLDI 1994).
template <typename E>
struct LongQuotient {
  using Vector = typename E::Vector;
  explicit LongQuotient(uint32_t divisor) : bits(32 - __builtin_clz(divisor)) {
    const uint64_t first = ((uint64_t{1} << bits) - divisor) << 32;  // the division on paper, with digits of 32 bits
    const uint64_t second = (first % divisor) << 32;
    factor = (first / divisor << 32) + second / divisor + 1;
  }
  BYTEPS_LIKE_INLINE Vector operator()(const Vector& value) const {
    if constexpr (kIsUnsigned<typename E::Value>) return Of(value);
    const Longs zero{}, sign = value < 0 ? ~zero : zero;
    return (Vector)((Of(((Longs)value ^ sign) - sign) ^ sign) - sign);
  }
  BYTEPS_LIKE_INLINE Longs Of(const Longs& value) const {
    const Longs upper = UpperProduct(value);
    return (((value - upper) >> 1) + upper) >> (bits - 1);
  }
  BYTEPS_LIKE_INLINE Longs UpperProduct(const Longs& value) const {
    const Longs low = Longs{} + (factor & 0xFFFFFFFFu), high = Longs{} + (factor >> 32), top = value >> 32;
    const Longs middle = Products(top, low) + (Products(value, low) >> 32);
    const Longs other = Products(value, high) + (middle & 0xFFFFFFFFu);
    return Products(top, high) + (middle >> 32) + (other >> 32);
  }
  const int bits;
  uint64_t factor;
};

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
