// The kernels as templates over element types and operations, and the table of them. Included once by each
// instruction set's file, after lanes.h and its own conversions. Loads of an iteration come before its stores, and
// iterations go upwards: so arrays may be the same, and a result narrower than its source may take its place.
#pragma once

#include "csrc/kernels/lanes.h"

namespace byteps_like::kernels {
namespace BYTEPS_LIKE_ISA {
namespace {

struct Sum {
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    return (typename E::Vector)((typename E::Modular)a + (typename E::Modular)b);
  }
};
struct Product {
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    return (typename E::Vector)((typename E::Modular)a * (typename E::Modular)b);
  }
};
// A NaN on either side is kept (the comparisons with it are false); of equal values, the first.
struct Min {
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    const typename E::Vector least = b < a ? b : a;
    if constexpr (!E::kIsFloat) return least;
    return b != b ? b : least;
  }
};
struct Max {
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    const typename E::Vector most = b > a ? b : a;
    if constexpr (!E::kIsFloat) return most;
    return b != b ? b : most;
  }
};

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

// a[i] = a[i] op b[i], where A and B have the same vector.
template <typename O, typename A, typename B>
void Update(void* a, const void* b, size_t count) {
  auto* left = static_cast<typename A::Stored*>(a);
  const auto* right = static_cast<const typename B::Stored*>(b);
  size_t i = 0;
  for (; i + A::kLanes <= count; i += A::kLanes) {
    A::Store(left + i, O::template Apply<A>(A::Load(left + i), B::Load(right + i)));
  }
  if (i < count) {
    const size_t rest = count - i;
    const auto result = O::template Apply<A>(LoadPart<A>(left + i, rest), LoadPart<B>(right + i, rest));
    StorePart<A>(left + i, result, rest);
  }
}

template <typename O, typename E>
void Reduce(void* a, const void* b, size_t count) {
  Update<O, E, E>(a, b, count);
}
template <typename O, typename E>
void Accumulate(void* accumulator, const void* source, size_t count) {
  Update<O, AccumulatorOf<E>, E>(accumulator, source, count);
}

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
  Map<To, From>(
      destination, source, count, [](const auto& vector) __attribute__((always_inline)) { return vector; });
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

// Largest integer not above value / divisor. Exact for the types up to 32 bits: their quotient in double is off by
// less than 2^-22 / divisor, and what is not an integer is at least 1 / divisor away from one.
template <typename T>
BYTEPS_LIKE_INLINE T FloorDivide(T value, uint32_t divisor) {
  if constexpr (sizeof(T) == 8) {
    const int64_t quotient = value / static_cast<int64_t>(divisor);
    return quotient - (quotient * static_cast<int64_t>(divisor) > value);
  } else {
    const double quotient = static_cast<double>(value) / static_cast<double>(divisor);
    const int32_t truncated = static_cast<int32_t>(quotient);
    return static_cast<T>(truncated - (static_cast<double>(truncated) > quotient));
  }
}

template <typename E>
void FinalizeInteger(void* destination, const void* accumulator, size_t count, uint32_t divisor) {
  using T = typename E::Value;
  auto* to = static_cast<T*>(destination);
  const auto* from = static_cast<const T*>(accumulator);
  if ((divisor & (divisor - 1)) == 0) {
    constexpr int kMostShift = sizeof(T) == 8 ? 63 : 31;
    const int log2 = __builtin_ctz(divisor);
    const int shift = log2 < kMostShift ? log2 : kMostShift;
    for (size_t i = 0; i < count; ++i) StoreAny<T>(to + i, static_cast<T>(LoadAny<T>(from + i) >> shift));
  } else {
    for (size_t i = 0; i < count; ++i) StoreAny<T>(to + i, FloorDivide<T>(LoadAny<T>(from + i), divisor));
  }
}

template <typename E>
void FinalizeFloat(void* destination, const void* accumulator, size_t count, uint32_t divisor) {
  using A = AccumulatorOf<E>;
  if (divisor == 1) {
    Copy<E, A>(destination, accumulator, count);
  } else {
    const auto by = static_cast<typename A::Value>(divisor);
    Map<E, A>(
        destination, accumulator,
        count, [by](const auto& vector) __attribute__((always_inline)) { return vector / by; });
  }
}

template <typename E>
void ScaleFloat(void* data, size_t count, double factor) {
  const auto by = static_cast<typename E::Value>(factor);
  Map<E, E>(
      data, data, count, [by](const auto& vector) __attribute__((always_inline)) { return vector * by; });
}

// Products beyond the type's range become its nearest end, and NaN becomes 0.
template <typename E>
void ScaleInteger(void* data, size_t count, double factor) {
  using T = typename E::Value;
  constexpr bool kSigned = static_cast<T>(-1) < T{0};
  constexpr T kMost = static_cast<T>(kSigned ? (uint64_t{1} << (8 * sizeof(T) - 1)) - 1 : ~uint64_t{0});
  constexpr T kLeast = static_cast<T>(-static_cast<T>(kSigned) - static_cast<T>(kSigned ? kMost : T{0}));
  constexpr double kBeyond = static_cast<double>(kMost);  // of int64: rounds up to 2^63
  auto* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) {
    const double product = static_cast<double>(LoadAny<T>(values + i)) * factor;
    const bool inside = product > static_cast<double>(kLeast) && product < kBeyond;
    const T end = product >= kBeyond ? kMost : product != product ? T{0} : kLeast;
    StoreAny<T>(values + i, inside ? static_cast<T>(product) : end);
  }
}

// Elements [i, i + kUnroll vectors) of ReduceMany. The counts are constants where the caller knows them.
template <typename O, typename E, size_t kUnroll>
BYTEPS_LIKE_INLINE void FuseVectors(void* const* destinations, size_t destination_count, const void* const* sources,
                                    size_t source_count, size_t i, uint32_t divisor) {
  typename E::Vector sums[kUnroll];
  const auto* first = static_cast<const typename E::Stored*>(sources[0]) + i;
  for (size_t u = 0; u < kUnroll; ++u) sums[u] = E::Load(first + u * E::kLanes);
  for (size_t s = 1; s < source_count; ++s) {
    const auto* source = static_cast<const typename E::Stored*>(sources[s]) + i;
    for (size_t u = 0; u < kUnroll; ++u) sums[u] = O::template Apply<E>(sums[u], E::Load(source + u * E::kLanes));
  }
  if constexpr (E::kIsFloat) {
    if (divisor != 1) {
      const auto by = static_cast<typename E::Value>(divisor);
      for (size_t u = 0; u < kUnroll; ++u) sums[u] = sums[u] / by;
    }
  }
  for (size_t d = 0; d < destination_count; ++d) {
    auto* destination = static_cast<typename E::Stored*>(destinations[d]) + i;
    for (size_t u = 0; u < kUnroll; ++u) E::Store(destination + u * E::kLanes, sums[u]);
  }
}

template <typename O, typename E>
void FusePart(void* const* destinations, size_t destination_count, const void* const* sources, size_t source_count,
              size_t i, size_t count, uint32_t divisor) {
  const auto part = [i, count](const void* array) {
    return LoadPart<E>(static_cast<const typename E::Stored*>(array) + i, count);
  };
  auto sum = part(sources[0]);
  for (size_t s = 1; s < source_count; ++s) sum = O::template Apply<E>(sum, part(sources[s]));
  if constexpr (E::kIsFloat) {
    if (divisor != 1) sum = sum / static_cast<typename E::Value>(divisor);
  }
  for (size_t d = 0; d < destination_count; ++d) {
    StorePart<E>(static_cast<typename E::Stored*>(destinations[d]) + i, sum, count);
  }
}

template <typename O, typename E>
void Fuse(void* const* destinations, size_t destination_count, const void* const* sources, size_t source_count,
          size_t begin, size_t end, uint32_t divisor) {
  constexpr size_t kUnroll = BYTEPS_LIKE_VECTOR_BYTES == 0 ? 16 : 256 / sizeof(typename E::Vector);
  constexpr size_t kStep = kUnroll * E::kLanes;
  size_t i = begin;
  if (source_count == 2 && destination_count == 2) {
    void* const to[2] = {destinations[0], destinations[1]};
    const void* const from[2] = {sources[0], sources[1]};
    for (; i + kStep <= end; i += kStep) FuseVectors<O, E, kUnroll>(to, 2, from, 2, i, divisor);
  } else {
    for (; i + kStep <= end; i += kStep) {
      FuseVectors<O, E, kUnroll>(destinations, destination_count, sources, source_count, i, divisor);
    }
  }
  for (; i + E::kLanes <= end; i += E::kLanes) {
    FuseVectors<O, E, 1>(destinations, destination_count, sources, source_count, i, divisor);
  }
  if (i < end) FusePart<O, E>(destinations, destination_count, sources, source_count, i, end - i, divisor);
}

void PlainAdd(void* a, const void* b, size_t count) {
  auto* __restrict left = static_cast<float*>(a);
  const auto* __restrict right = static_cast<const float*>(b);
  for (size_t i = 0; i < count; ++i) left[i] += right[i];
}

#define BYTEPS_LIKE_ROW(loop, op)                                                                                 \
  {                                                                                                               \
    loop<op, Float32>, loop<op, Float64>, loop<op, Float16>, loop<op, BFloat16>, loop<op, Int8>, loop<op, UInt8>, \
        loop<op, Int32>, loop<op, Int64>                                                                          \
  }
#define BYTEPS_LIKE_ROWS(loop) \
  { BYTEPS_LIKE_ROW(loop, Sum), BYTEPS_LIKE_ROW(loop, Min), BYTEPS_LIKE_ROW(loop, Max), BYTEPS_LIKE_ROW(loop, Product) }
#define BYTEPS_LIKE_COLUMN(floats, integers)                                                              \
  {                                                                                                       \
    floats<Float32>, floats<Float64>, floats<Float16>, floats<BFloat16>, integers<Int8>, integers<UInt8>, \
        integers<Int32>, integers<Int64>                                                                  \
  }
#define BYTEPS_LIKE_CASTS(from) \
  { Copy<WideFloat32, from>, ToDouble<from>, Copy<Float16, from>, Copy<BFloat16, from> }

constexpr Table MakeTable(const char* name) {
  return Table{name,
               BYTEPS_LIKE_ROWS(Reduce),
               BYTEPS_LIKE_ROWS(Accumulate),
               BYTEPS_LIKE_ROWS(Fuse),
               BYTEPS_LIKE_COLUMN(Widen, Widen),
               BYTEPS_LIKE_COLUMN(FinalizeFloat, FinalizeInteger),
               BYTEPS_LIKE_COLUMN(ScaleFloat, ScaleInteger),
               {BYTEPS_LIKE_CASTS(WideFloat32),
                {FromDouble<WideFloat32>, Copy<Float64, Float64>, FromDouble<Float16>, FromDouble<BFloat16>},
                BYTEPS_LIKE_CASTS(Float16),
                BYTEPS_LIKE_CASTS(BFloat16)},
               PlainAdd};
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
