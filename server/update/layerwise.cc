// LARS and LAMB: the rate of each tensor follows from its norms, so the tensor must be whole.
#include <algorithm>
#include <cmath>
#include <limits>

#include "server/update/moments.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

// 1 where the papers' ratio says nothing: a norm of 0, or one beyond fp64.
double Ratio(double norm, double of) {
  const double ratio = of != 0 ? norm / of : 0;
  return ratio > 0 && ratio < std::numeric_limits<double>::infinity() ? ratio : 1;
}

template <typename T>
double Norm(const T* values, size_t count) {
  double total = 0;
  InBestSet([&]() __attribute__((always_inline)) {
    Squares squares;
    squares.Add(0, count, [=](size_t i) __attribute__((always_inline)) { return values[i]; });
    total = squares.Total();
  });
  return std::sqrt(total);
}

class Lars final : public FloatUpdate<Lars> {
 public:
  explicit Lars(CodecSpec& spec)
      : lr_(spec.NonNegative("lr")),
        momentum_(spec.Fraction("momentum")),
        weight_decay_(spec.NonNegative("weight_decay")),
        trust_(spec.NonNegative("trust")) {}
  bool whole() const override { return true; }
  double lr() const override { return lr_; }
  size_t StateCount(const ValueShape& shape) const override { return shape.count(); }

  template <typename T>
  void Step(const UpdateCall& call) const {
    const Arrays<T> arrays(call);
    const double norm = Norm(arrays.value, arrays.count);
    const double ratio = Ratio(trust_ * norm, Norm(arrays.gradient, arrays.count) + weight_decay_ * norm);
    const T rate = static_cast<T>(call.lr * ratio), momentum = static_cast<T>(momentum_),
            decay = static_cast<T>(weight_decay_);
    RunAll<1, T>(call, [=](T& value, T& buffer, T gradient) __attribute__((always_inline)) {
      buffer = momentum * buffer + rate * Decayed(gradient, value, decay);
      value -= buffer;
    });
  }

 private:
  const double lr_, momentum_, weight_decay_, trust_;
};

class Lamb final : public FloatUpdate<Lamb> {
 public:
  explicit Lamb(CodecSpec& spec)
      : lr_(spec.NonNegative("lr")), moments_(spec), weight_decay_(spec.NonNegative("weight_decay")) {}
  bool whole() const override { return true; }
  double lr() const override { return lr_; }
  size_t StateCount(const ValueShape& shape) const override { return 2 * shape.count(); }

  template <typename T>
  void Step(const UpdateCall& call) const {
    const Arrays<T> arrays(call);
    const MomentStep<T> moments(moments_, 1, call.step);
    const T decay = static_cast<T>(weight_decay_);
    const T rate = static_cast<T>(call.lr * Advance(arrays, moments, decay));
    RunAll<2, T>(call, [=](T& value, T& first, T& second, T) __attribute__((always_inline)) {
      value -= rate * Decayed(moments.Direction(first, second), value, decay);
    });
  }

 private:
  // Advances the moments, and returns the ratio of the norms of value and direction, in one pass: the norms of a
  // stretch are taken while it is in the cache.
  template <typename T>
  static double Advance(const Arrays<T>& arrays, const MomentStep<T>& moments, T decay) {
    constexpr size_t kStretch = 1024;
    double of_value = 0, of_direction = 0;
    InBestSet([&]() __attribute__((always_inline)) {
      Squares values, directions;
      for (size_t begin = 0; begin < arrays.count; begin += kStretch) {
        const size_t end = std::min(begin + kStretch, arrays.count);
        Run<2>(arrays, begin, end, [=](T&, T& first, T& second, T gradient) __attribute__((always_inline)) {
          moments.Advance(first, second, gradient);
        });
        values.Add(begin, end, [&](size_t i) __attribute__((always_inline)) { return arrays.value[i]; });
        directions.Add(begin, end, [&](size_t i) __attribute__((always_inline)) {
          return Decayed(moments.Direction(arrays.first[i], arrays.second[i]), arrays.value[i], decay);
        });
      }
      of_value = values.Total();
      of_direction = directions.Total();
    });
    return Ratio(std::sqrt(of_value), std::sqrt(of_direction));
  }

  const double lr_;
  const Moments moments_;
  const double weight_decay_;
};

}  // namespace

Result<UpdatePointer> MakeLars(CodecSpec& spec) { return Made<Lars>(spec); }
Result<UpdatePointer> MakeLamb(CodecSpec& spec) { return Made<Lamb>(spec); }

}  // namespace byteps_like
