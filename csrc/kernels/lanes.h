// An element type as the loops see it: its bytes in memory, the vector type it is computed in, and the conversions
// between them. Included once by each instruction set's file, which first defines
//   BYTEPS_LIKE_ISA            a name for the namespace
//   BYTEPS_LIKE_VECTOR_BYTES   width of a register; 0: one element at a time (whatever the compiler makes of it)
//   BYTEPS_LIKE_STREAM_BYTES   width of loads and stores where there is nothing to convert
// and afterwards defines what is declared below. Vectors are the compilers' own (`vector_size`), whose operators are
// the scalar ones element by element: so all instruction sets give the same bits. Everything has internal linkage; see
// table.h.
#pragma once

#include <type_traits>

#include "csrc/kernels/table.h"

#define BYTEPS_LIKE_INLINE inline __attribute__((always_inline))

namespace byteps_like::kernels {
namespace BYTEPS_LIKE_ISA {
namespace {

#if BYTEPS_LIKE_VECTOR_BYTES
inline constexpr size_t kFloatLanes = BYTEPS_LIKE_VECTOR_BYTES / 4;
inline constexpr size_t kStreamLanes = BYTEPS_LIKE_STREAM_BYTES / 4;
template <typename T, size_t kLanes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kLanes * sizeof(T))));
};
#else
inline constexpr size_t kFloatLanes = 1;
inline constexpr size_t kStreamLanes = 1;
template <typename T, size_t kLanes>
struct VectorOf {
  using Type = T;
};
#endif

using Floats = VectorOf<float, kFloatLanes>::Type;
using Words = VectorOf<uint32_t, kFloatLanes>::Type;      // the bits of Floats
using HalfWords = VectorOf<uint16_t, kFloatLanes>::Type;  // as many 16-bit floats
using Bytes = VectorOf<uint8_t, kFloatLanes>::Type;       // as many 8-bit floats
using StreamFloats = VectorOf<float, kStreamLanes>::Type;
using Longs = VectorOf<uint64_t, kStreamLanes / 2>::Type;

template <typename To, typename From>
BYTEPS_LIKE_INLINE To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// Of vectors and single values, at any address.
template <typename V>
BYTEPS_LIKE_INLINE V LoadAny(const void* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <typename V>
BYTEPS_LIKE_INLINE void StoreAny(void* to, const V& vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

// What an instruction set has to give: conversions, products, and whether a or b has a NaN in any lane.
#if BYTEPS_LIKE_VECTOR_BYTES
BYTEPS_LIKE_INLINE bool AnyNan(const StreamFloats& a, const StreamFloats& b);
BYTEPS_LIKE_INLINE Longs Products(const Longs& a, const Longs& b);  // of the lower halves
BYTEPS_LIKE_INLINE Words Widened(const HalfWords& bits);
BYTEPS_LIKE_INLINE HalfWords UpperHalves(const Words& bits);  // bits >> 16
BYTEPS_LIKE_INLINE Words Widened(const Bytes& bytes);
BYTEPS_LIKE_INLINE Bytes LowBytes(const Words& bits);
BYTEPS_LIKE_INLINE Floats HalfToFloat(const HalfWords& half);
BYTEPS_LIKE_INLINE HalfWords FloatToHalf(const Floats& value);
#else
BYTEPS_LIKE_INLINE uint64_t Products(uint64_t a, uint64_t b) { return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu); }
BYTEPS_LIKE_INLINE uint32_t Widened(uint16_t bits) { return bits; }
BYTEPS_LIKE_INLINE uint16_t UpperHalves(uint32_t bits) { return static_cast<uint16_t>(bits >> 16); }
BYTEPS_LIKE_INLINE uint32_t Widened(uint8_t byte) { return byte; }
BYTEPS_LIKE_INLINE uint8_t LowBytes(uint32_t bits) { return static_cast<uint8_t>(bits); }

// The bits of vcvtph2ps: exact, and a signalling NaN becomes quiet.
BYTEPS_LIKE_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 31) return BitCast<float>(sign | 0x7F800000u | (mantissa ? 0x400000u : 0u) | (mantissa << 13));
  if (exponent != 0) return BitCast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  return BitCast<float>(sign | BitCast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f));
}

// The bits of vcvtps2ph: nearest even; a NaN keeps the top of its payload and becomes quiet.
BYTEPS_LIKE_INLINE uint16_t FloatToHalf(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65536 and more
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);             // less than half the least denormal
  if (magnitude >= 0x38800000u) {  // a normal number, or rounds up to infinity
    const uint32_t rebased = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | ((rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13));
  }
  const uint32_t shift = 126 - (magnitude >> 23);  // in units of the least denormal, 2^-24
  const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  const uint32_t below_half = (1u << (shift - 1)) - 1;
  return static_cast<uint16_t>(sign | ((mantissa + below_half + ((mantissa >> shift) & 1u)) >> shift));
}
#endif

BYTEPS_LIKE_INLINE Floats BFloatToFloat(const HalfWords& bits) { return BitCast<Floats>(Widened(bits) << 16); }

// The nearest bfloat (ties to even) of a number in the upper half of each word. The lower halves are arbitrary.
template <typename W, typename F>
BYTEPS_LIKE_INLINE W RoundNumberToBFloat(const F& value) {
  const W bits = BitCast<W>(value);
  return bits + 0x7FFFu + ((bits >> 16) & 1u);
}
// The same of any value: every NaN becomes 0x7FC0, as in torch's scalar conversion.
template <typename W, typename F>
BYTEPS_LIKE_INLINE W RoundToBFloat(const F& value) {
  const W nan = W{} + 0x7FC00000u;
  return value != value ? nan : RoundNumberToBFloat<W>(value);
}
BYTEPS_LIKE_INLINE HalfWords FloatToBFloat(const Floats& value) { return UpperHalves(RoundToBFloat<Words>(value)); }

// An element type: T in memory, Vector (of kLanes values of Value) in registers. Sums and products of integers are
// taken on the unsigned type, so that they wrap; single short ones as words, since the language would make them ints.
template <typename T, typename U, size_t kBytes>
struct Plain {
  using Stored = T;
  using Value = T;
  static constexpr size_t kLanes = kBytes == 0 ? 1 : kBytes / sizeof(T);
  static constexpr bool kIsPaired = false;
  static constexpr bool kIsOrdered = false;
  static constexpr bool kIsComputed = false;  // from and to other bits than those in memory
  static constexpr bool kIsFloat = static_cast<T>(0.5) != T{0};
  using Vector = typename VectorOf<T, kLanes>::Type;
  using Modular =
      std::conditional_t<kLanes == 1 && sizeof(U) < sizeof(unsigned), unsigned, typename VectorOf<U, kLanes>::Type>;
  static BYTEPS_LIKE_INLINE Vector Load(const T* from) { return LoadAny<Vector>(from); }
  static BYTEPS_LIKE_INLINE void Store(T* to, const Vector& vector) { StoreAny(to, vector); }
};
using Float32 = Plain<float, float, BYTEPS_LIKE_STREAM_BYTES>;
using Float64 = Plain<double, double, BYTEPS_LIKE_STREAM_BYTES>;
using Int8 = Plain<int8_t, uint8_t, BYTEPS_LIKE_STREAM_BYTES>;
using UInt8 = Plain<uint8_t, uint8_t, BYTEPS_LIKE_STREAM_BYTES>;
using Int32 = Plain<int32_t, uint32_t, BYTEPS_LIKE_STREAM_BYTES>;
using Int64 = Plain<int64_t, uint64_t, BYTEPS_LIKE_STREAM_BYTES>;
using Int16 = Plain<int16_t, uint16_t, BYTEPS_LIKE_STREAM_BYTES>;
using UInt16 = Plain<uint16_t, uint16_t, BYTEPS_LIKE_STREAM_BYTES>;
using UInt32 = Plain<uint32_t, uint32_t, BYTEPS_LIKE_STREAM_BYTES>;
using UInt64 = Plain<uint64_t, uint64_t, BYTEPS_LIKE_STREAM_BYTES>;
using WideFloat32 = Plain<float, float, BYTEPS_LIKE_VECTOR_BYTES>;  // beside 16-bit and 8-bit floats

struct Float16 : WideFloat32 {
  using Stored = uint16_t;
  static constexpr bool kIsComputed = true;
  static BYTEPS_LIKE_INLINE Floats Load(const uint16_t* from) { return HalfToFloat(LoadAny<HalfWords>(from)); }
  static BYTEPS_LIKE_INLINE void Store(uint16_t* to, const Floats& value) { StoreAny(to, FloatToHalf(value)); }
};
struct BFloat16 : WideFloat32 {
  using Stored = uint16_t;
  static constexpr bool kIsComputed = true;
  static BYTEPS_LIKE_INLINE Floats Load(const uint16_t* from) { return BFloatToFloat(LoadAny<HalfWords>(from)); }
  static BYTEPS_LIKE_INLINE void Store(uint16_t* to, const Floats& value) { StoreAny(to, FloatToBFloat(value)); }
};

// bfloats where all arrays are of them: two vectors, of the elements at even and at odd places, since both are had
// without moving a lane.
#if BYTEPS_LIKE_VECTOR_BYTES
struct FloatPair {
  StreamFloats even, odd;
};
BYTEPS_LIKE_INLINE FloatPair operator*(const FloatPair& pair, float by) { return {pair.even * by, pair.odd * by}; }
BYTEPS_LIKE_INLINE FloatPair operator/(const FloatPair& pair, float by) { return {pair.even / by, pair.odd / by}; }
struct PairedBFloat16 : Float32 {
  using Stored = uint16_t;
  using Half = Float32;
  using Vector = FloatPair;
  using Bits = VectorOf<uint32_t, kStreamLanes>::Type;
  static constexpr size_t kLanes = 2 * kStreamLanes;
  static constexpr bool kIsPaired = true;
  static constexpr bool kIsComputed = true;
  static BYTEPS_LIKE_INLINE FloatPair Load(const uint16_t* from) {
    const Bits bits = LoadAny<Bits>(from);
    return {BitCast<Half::Vector>(bits << 16), BitCast<Half::Vector>(bits & 0xFFFF0000u)};
  }
  static BYTEPS_LIKE_INLINE void Store(uint16_t* to, const FloatPair& value) {
    Bits even = RoundNumberToBFloat<Bits>(value.even), odd = RoundNumberToBFloat<Bits>(value.odd);
    if (__builtin_expect(AnyNan(value.even, value.odd), 0)) {  // rare: a branch costs less than telling lanes apart
      even = RoundToBFloat<Bits>(value.even);
      odd = RoundToBFloat<Bits>(value.odd);
    }
    StoreAny(to, (even >> 16) | (odd & 0xFFFF0000u));
  }
};

// 16-bit floats of which the lesser or the greater is wanted: compared by their bits, without conversion.
template <int16_t kInfinity>
struct Ordered16 : Int16 {
  static constexpr bool kIsOrdered = true;
  static constexpr bool kIsComputed = true;
  static BYTEPS_LIKE_INLINE Vector Magnitude(const Vector& value) { return value & 0x7FFF; }
  // Ascends with the numbers, where 0 and -0 are equal; of a NaN it means nothing.
  static BYTEPS_LIKE_INLINE Vector Rank(const Vector& value) {
    const Vector sign = value >> 15;
    return (Magnitude(value) ^ sign) - sign;
  }
  static BYTEPS_LIKE_INLINE Vector IsNan(const Vector& value) { return Magnitude(value) > kInfinity; }
};
// The NaN is b's where both are; as any conversion does it, it becomes quiet.
struct OrderedFloat16 : Ordered16<0x7C00> {
  static BYTEPS_LIKE_INLINE Vector Choose(const Vector& b_wins, const Vector& a, const Vector& b) {
    const Vector a_nan = IsNan(a), b_nan = IsNan(b);
    const Vector chosen = ((b_wins & ~a_nan) | b_nan) ? b : a;
    return chosen | ((a_nan | b_nan) & 0x0200);
  }
};
struct OrderedBFloat16 : Ordered16<0x7F80> {
  static BYTEPS_LIKE_INLINE Vector Choose(const Vector& b_wins, const Vector& a, const Vector& b) {
    const Vector nan = Vector{} + 0x7FC0;
    const Vector chosen = b_wins ? b : a;
    return (IsNan(a) | IsNan(b)) ? nan : chosen;
  }
};
#else
using PairedBFloat16 = BFloat16;
using OrderedFloat16 = Float16;
using OrderedBFloat16 = BFloat16;
#endif

// The type in which contributions of E are summed, with as many lanes.
template <typename E>
struct AccumulatorFor {
  using Type = E;
};
template <>
struct AccumulatorFor<Float16> {
  using Type = WideFloat32;
};
template <>
struct AccumulatorFor<BFloat16> {
  using Type = WideFloat32;
};
template <typename E>
using AccumulatorOf = typename AccumulatorFor<E>::Type;

// The last `count` < kLanes elements: the same vector code on a padded copy.
template <typename E>
BYTEPS_LIKE_INLINE typename E::Vector LoadPart(const typename E::Stored* from, size_t count) {
  typename E::Stored padded[E::kLanes] = {};
  __builtin_memcpy(padded, from, count * sizeof(padded[0]));
  return E::Load(padded);
}
template <typename E>
BYTEPS_LIKE_INLINE void StorePart(typename E::Stored* to, const typename E::Vector& vector, size_t count) {
  typename E::Stored padded[E::kLanes];
  E::Store(padded, vector);
  __builtin_memcpy(to, padded, count * sizeof(padded[0]));
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
