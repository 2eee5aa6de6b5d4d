// Reductions as templates over operations and element types. Loads of an iteration come before its stores: so a result
// may take the place of a source.
#pragma once

#include "csrc/kernels/lanes.h"

namespace byteps_like::kernels {
namespace BYTEPS_LIKE_ISA {
namespace {

struct Sum {
  static constexpr bool kSelects = false;  // one of its operands
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    return (typename E::Vector)((typename E::Modular)a + (typename E::Modular)b);
  }
};
struct Product {
  static constexpr bool kSelects = false;
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    return (typename E::Vector)((typename E::Modular)a * (typename E::Modular)b);
  }
};
// A NaN on either side is kept (the comparisons with it are false); of equal values, the first.
struct Min {
  static constexpr bool kSelects = true;
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    if constexpr (E::kIsOrdered) return E::Choose(E::Rank(b) < E::Rank(a), a, b);
    const typename E::Vector least = b < a ? b : a;
    if constexpr (!E::kIsFloat) return least;
    return b != b ? b : least;
  }
};
struct Max {
  static constexpr bool kSelects = true;
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    if constexpr (E::kIsOrdered) return E::Choose(E::Rank(b) > E::Rank(a), a, b);
    const typename E::Vector most = b > a ? b : a;
    if constexpr (!E::kIsFloat) return most;
    return b != b ? b : most;
  }
};

// Bit by bit; of integers.
struct And {
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    return a & b;
  }
};
struct Or {
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    return a | b;
  }
};
struct Xor {
  template <typename E>
  static BYTEPS_LIKE_INLINE typename E::Vector Apply(const typename E::Vector& a, const typename E::Vector& b) {
    return a ^ b;
  }
};

template <typename O, typename E>
BYTEPS_LIKE_INLINE typename E::Vector Combine(const typename E::Vector& a, const typename E::Vector& b) {
  if constexpr (E::kIsPaired) {
    return {O::template Apply<typename E::Half>(a.even, b.even), O::template Apply<typename E::Half>(a.odd, b.odd)};
  } else {
    return O::template Apply<E>(a, b);
  }
}

inline constexpr size_t kLineBytes = 64;

// Elements [i, i + kUnroll vectors) of Update. The instructions of elements that are computed fill a core's window, so
// that its loads would reach memory too late: lines are fetched ahead.
template <typename O, typename E, size_t kUnroll>
BYTEPS_LIKE_INLINE void UpdateAhead(typename E::Stored* left, const typename E::Stored* right) {
  constexpr size_t kAhead = 1536 / sizeof(*left), kLine = kLineBytes / sizeof(*left);
  for (size_t line = 0; line < kUnroll * E::kLanes; line += kLine) {
    __builtin_prefetch(left + kAhead + line);
    __builtin_prefetch(right + kAhead + line);
  }
  typename E::Vector results[kUnroll];
  for (size_t u = 0; u < kUnroll; ++u) {
    results[u] = Combine<O, E>(E::Load(left + u * E::kLanes), E::Load(right + u * E::kLanes));
  }
  for (size_t u = 0; u < kUnroll; ++u) E::Store(left + u * E::kLanes, results[u]);
}

// a[i] = a[i] op b[i], where A and B have the same vector.
template <typename O, typename A, typename B>
void Update(void* a, const void* b, size_t count) {
  auto* left = static_cast<typename A::Stored*>(a);
  const auto* right = static_cast<const typename B::Stored*>(b);
  size_t i = 0;
  if constexpr (A::kIsComputed && A::kLanes > 1) {
    constexpr size_t kUnroll = 2 * kLineBytes / (A::kLanes * sizeof(*left)), kStep = kUnroll * A::kLanes;
    for (; i + kStep <= count; i += kStep) UpdateAhead<O, A, kUnroll>(left + i, right + i);
  }
  for (; i + A::kLanes <= count; i += A::kLanes) {
    A::Store(left + i, Combine<O, A>(A::Load(left + i), B::Load(right + i)));
  }
  if (i < count) {
    const size_t rest = count - i;
    const auto result = Combine<O, A>(LoadPart<A>(left + i, rest), LoadPart<B>(right + i, rest));
    StorePart<A>(left + i, result, rest);
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
    for (size_t u = 0; u < kUnroll; ++u) sums[u] = Combine<O, E>(sums[u], E::Load(source + u * E::kLanes));
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
  for (size_t s = 1; s < source_count; ++s) sum = Combine<O, E>(sum, part(sources[s]));
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

// The same of E, which can't be divided; D stands for it where it is to be.
template <typename O, typename E, typename D>
void FuseOrdered(void* const* destinations, size_t destination_count, const void* const* sources, size_t source_count,
                 size_t begin, size_t end, uint32_t divisor) {
  const auto fuse = divisor == 1 ? Fuse<O, E> : Fuse<O, D>;
  fuse(destinations, destination_count, sources, source_count, begin, end, divisor);
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
