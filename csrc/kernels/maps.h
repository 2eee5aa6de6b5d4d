// Kernels with one source: widening, narrowing, division, scaling and casts, as templates over element types. Loads of
// an iteration come before its stores, and iterations go upwards: so a result may take the place of its source, also
// where it is narrower.
#pragma once

#include "csrc/kernels/lanes.h"
#include "csrc/kernels/quotients.h"

namespace byteps_like::kernels {
namespace BYTEPS_LIKE_ISA {
namespace {

// destination[i] = apply(source[i]), where both have the same vector.
template <typename To, typename From, typename F>
BYTEPS_LIKE_INLINE void Map(void* destination, const void* source, size_t count, const F& apply) {
  auto* to = static_cast<typename To::Stored*>(destination);
  const auto* from = static_cast<const typename From::Stored*>(source);
  size_t i = 0;
  for (; i + To::kLanes <= count; i += To::kLanes) To::Store(to + i, apply(From::Load(from + i)));
  if (i < count) StorePart<To>(to + i, apply(LoadPart<From>(from + i, count - i)), count - i);
}

template <typename To, typename From>
void Copy(void* destination, const void* source, size_t count) {
  Map<To, From>(destination, source, count, [](const auto& vector) __attribute__((always_inline)) { return vector; });
}
template <typename E>
void Widen(void* accumulator, const void* source, size_t count) {
  Copy<AccumulatorOf<E>, E>(accumulator, source, count);
}

// To and from double: the other side's vector has another number of lanes, so it goes in stretches of one page.
inline constexpr size_t kStretch = 1024;
template <typename To>
void FromDouble(void* destination, const void* source, size_t count) {
  auto* to = static_cast<typename To::Stored*>(destination);
  const auto* from = static_cast<const double*>(source);
  float single[kStretch];
  for (size_t i = 0; i < count; i += kStretch) {
    const size_t stretch = count - i < kStretch ? count - i : kStretch;
    for (size_t j = 0; j < stretch; ++j) single[j] = static_cast<float>(LoadAny<double>(from + i + j));
    Copy<To, WideFloat32>(to + i, single, stretch);
  }
}
template <typename From>
void ToDouble(void* destination, const void* source, size_t count) {
  auto* to = static_cast<double*>(destination);
  const auto* from = static_cast<const typename From::Stored*>(source);
  float single[kStretch];
  for (size_t i = 0; i < count; i += kStretch) {
    const size_t stretch = count - i < kStretch ? count - i : kStretch;
    Copy<WideFloat32, From>(single, from + i, stretch);
    for (size_t j = 0; j < stretch; ++j) StoreAny<double>(to + i + j, single[j]);
  }
}

// destination[i] = apply(source[i]), element by element: vectors are left to the compiler.
template <typename T, typename F>
BYTEPS_LIKE_INLINE void MapEach(void* destination, const void* source, size_t count, const F& apply) {
  auto* to = static_cast<T*>(destination);
  const auto* from = static_cast<const T*>(source);
  for (size_t i = 0; i < count; ++i) StoreAny<T>(to + i, apply(LoadAny<T>(from + i)));
}

template <typename E>
void FinalizeInteger(void* destination, const void* accumulator, size_t count, uint32_t divisor) {
  using T = typename E::Value;
  if ((divisor & (divisor - 1)) == 0) {
    MapEach<T>(destination, accumulator, count, Shift<T>(divisor));
  } else if constexpr (sizeof(T) == 8) {
    Map<E, E>(destination, accumulator, count, LongQuotient<E>(divisor));
  } else {
    using Divide = typename Choose<sizeof(T) == 1, ShortQuotient<T>, RealQuotient<T>>::Type;
    MapEach<T>(destination, accumulator, count, Divide(divisor));
  }
}

template <typename E>
void FinalizeFloat(void* destination, const void* accumulator, size_t count, uint32_t divisor) {
  using A = AccumulatorOf<E>;
  if (divisor == 1) {
    Copy<E, A>(destination, accumulator, count);
  } else {
    const auto by = static_cast<typename A::Value>(divisor);
    Map<E, A>(destination, accumulator, count,
              [by](const auto& vector) __attribute__((always_inline)) { return vector / by; });
  }
}

template <typename E>
void ScaleFloat(void* data, size_t count, double factor) {
  const auto by = static_cast<typename E::Value>(factor);
  Map<E, E>(data, data, count, [by](const auto& vector) __attribute__((always_inline)) { return vector * by; });
}

// value towards zero; beyond the type's range its nearest end, and 0 for NaN. `least` and `most` are the range.
template <typename T>
BYTEPS_LIKE_INLINE T Truncate(double value, T least, T most) {
  const auto bottom = static_cast<double>(least);
  const auto top = static_cast<double>(most);  // of 64 bits: rounds up to 2^63 or 2^64, which is beyond
  if constexpr (sizeof(T) == 8) {
    if (value > bottom && value < top) return static_cast<T>(value);
    return value >= top ? most : value != value ? T{0} : least;
  } else {  // without branches, for the sake of vectorisation
    value = value == value ? value : 0.0;
    value = value < bottom ? bottom : value;
    value = value > top ? top : value;
    using Integer = typename Choose<sizeof(T) == 4 && kIsUnsigned<T>, int64_t, int32_t>::Type;
    return static_cast<T>(static_cast<Integer>(value));
  }
}

template <typename E>
void ScaleInteger(void* data, size_t count, double factor) {
  using T = typename E::Value;
  constexpr T kMost = static_cast<T>(kIsUnsigned<T> ? ~uint64_t{0} : (uint64_t{1} << (8 * sizeof(T) - 1)) - 1);
  constexpr T kLeast = static_cast<T>(kIsUnsigned<T> ? 0 : -kMost - 1);
  auto* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) {
    const double product = static_cast<double>(LoadAny<T>(values + i)) * factor;
    StoreAny<T>(values + i, Truncate<T>(product, kLeast, kMost));
  }
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
