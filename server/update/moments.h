// The running means of a gradient and of its square that Adam and its kin keep.
#pragma once

#include <cmath>
#include <cstdint>

#include "compression/spec.h"
#include "server/update/loop.h"

namespace byteps_like {

struct Moments {
  explicit Moments(CodecSpec& spec)
      : beta1(spec.Fraction("beta1")), beta2(spec.Fraction("beta2")), eps(spec.NonNegative("eps")) {}
  const double beta1, beta2, eps;
};

// Its numbers for one step, in the type of the value.
template <typename T>
struct MomentStep {
  MomentStep(const Moments& moments, double lr, uint64_t step)
      : toward(static_cast<T>(1 - moments.beta1)),
        beta2(static_cast<T>(moments.beta2)),
        share(static_cast<T>(1 - moments.beta2)),
        rate(static_cast<T>(lr / (1 - std::pow(moments.beta1, static_cast<double>(step))))),
        root(static_cast<T>(std::sqrt(1 - std::pow(moments.beta2, static_cast<double>(step))))),
        eps(static_cast<T>(moments.eps)) {}

  BYTEPS_LIKE_STEP void Advance(T& first, T& second, T gradient) const {
    first = first + toward * (gradient - first);
    second = beta2 * second + share * gradient * gradient;
  }
  BYTEPS_LIKE_STEP T Direction(T first, T second) const { return rate * first / (Root(second) / root + eps); }

  T toward, beta2, share, rate, root, eps;
};

}  // namespace byteps_like
