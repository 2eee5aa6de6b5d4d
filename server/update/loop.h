// How the loops of updates are compiled for several instruction sets: plain loops, once for AVX2 and once for whatever
// the compiler may take for granted, in the same file. The compiler makes vectors of them; since fp contraction and
// reassociation are off, and AVX2 brings no fused operations, both give the same bits. What is called from a loop must
// be inlined into it (BYTEPS_LIKE_STEP), or it would be compiled for the lesser set.
#pragma once

#include <cstddef>

#include "csrc/base/dtype.h"
#include "csrc/kernels/kernels.h"
#include "server/update/update.h"

#define BYTEPS_LIKE_STEP inline __attribute__((always_inline))

namespace byteps_like {

#if defined(__x86_64__)
template <typename Work>
[[gnu::target("avx2"), gnu::noinline]] void InAvx2(const Work& work) {
  work();
}
#endif

template <typename Work>
[[gnu::noinline]] void Portably(const Work& work) {
  work();
}

// Calls `work`, a lambda that is always inlined, as compiled for the instruction set in use.
template <typename Work>
void InBestSet(const Work& work) {
#if defined(__x86_64__)
  if (kernels::InstructionSet() != "scalar") return InAvx2(work);
#endif
  Portably(work);
}

// The arrays of a call whose state has up to two numbers per element.
template <typename T>
struct Arrays {
  explicit Arrays(const UpdateCall& call)
      : value(static_cast<T*>(call.value)),
        first(static_cast<T*>(call.state)),
        second(static_cast<T*>(call.state) + (call.state == nullptr ? 0 : call.shape.count())),
        gradient(static_cast<const T*>(call.gradient)),
        count(call.shape.count()) {}

  T* value;
  T* first;
  T* second;
  const T* gradient;
  size_t count;
};

// step(value, [first, [second,]] gradient) for elements [begin, end), in one pass over memory. `step` changes the
// numbers that it is given by reference.
template <size_t kSlots, typename T, typename Step>
BYTEPS_LIKE_STEP void Run(const Arrays<T>& arrays, size_t begin, size_t end, const Step& step) {
  T* __restrict value = arrays.value;
  T* __restrict first = arrays.first;
  T* __restrict second = arrays.second;
  const T* __restrict gradient = arrays.gradient;
  const Step local = step;  // whose numbers no store can change
  for (size_t i = begin; i < end; ++i) {
    if constexpr (kSlots == 0) local(value[i], gradient[i]);
    if constexpr (kSlots == 1) local(value[i], first[i], gradient[i]);
    if constexpr (kSlots == 2) local(value[i], first[i], second[i], gradient[i]);
  }
}

template <size_t kSlots, typename T, typename Step>
void RunAll(const UpdateCall& call, const Step& step) {
  const Arrays<T> arrays(call);
  InBestSet([&]() __attribute__((always_inline)) { Run<kSlots>(arrays, 0, arrays.count, step); });
}

BYTEPS_LIKE_STEP float Root(float value) { return __builtin_sqrtf(value); }
BYTEPS_LIKE_STEP double Root(double value) { return __builtin_sqrt(value); }

// The gradient of the loss with an L2 penalty; without one, the gradient itself.
template <typename T>
BYTEPS_LIKE_STEP T Decayed(T gradient, T value, T weight_decay) {
  return weight_decay != 0 ? gradient + weight_decay * value : gradient;
}

// A sum of squares in 16 lanes, by index, joined in order.
class Squares {
 public:
  // Adds at(i)² for i in [begin, end); `begin` is a multiple of 16.
  template <typename At>
  BYTEPS_LIKE_STEP void Add(size_t begin, size_t end, const At& at) {
    double lanes[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = lanes_[lane];
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += Square(at(i + lane));
    for (size_t lane = 0; i < end; ++i, ++lane) lanes[lane] += Square(at(i));
    for (size_t lane = 0; lane < kLanes; ++lane) lanes_[lane] = lanes[lane];
  }
  BYTEPS_LIKE_STEP double Total() const {
    double total = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) total += lanes_[lane];
    return total;
  }

 private:
  static constexpr size_t kLanes = 16;
  static BYTEPS_LIKE_STEP double Square(double value) { return value * value; }
  double lanes_[kLanes] = {};
};

// An update of fp32 and fp64. Derived::Step<T>(call) applies it to values of type T.
template <typename Derived>
class FloatUpdate : public ValueUpdate {
 public:
  Result<bool> Apply(const UpdateCall& call) const override {
    const auto& self = static_cast<const Derived&>(*this);
    if (call.dtype == DType::kFloat32) {
      self.template Step<float>(call);
    } else {
      self.template Step<double>(call);
    }
    return true;
  }
};

}  // namespace byteps_like
