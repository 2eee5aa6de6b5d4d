// Stochastic gradient descent, without and with momentum.
#include "server/update/loop.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

class Sgd final : public FloatUpdate<Sgd> {
 public:
  explicit Sgd(CodecSpec& spec) : lr_(spec.NonNegative("lr")), weight_decay_(spec.NonNegative("weight_decay")) {}
  double lr() const override { return lr_; }

  template <typename T>
  void Step(const UpdateCall& call) const {
    const T rate = static_cast<T>(call.lr), decay = static_cast<T>(weight_decay_);
    RunAll<0, T>(call, [=](T& value, T gradient)
                           __attribute__((always_inline)) { value -= rate * Decayed(gradient, value, decay); });
  }

 private:
  const double lr_, weight_decay_;
};

template <bool kNesterov>
class MomentumOf final : public FloatUpdate<MomentumOf<kNesterov>> {
 public:
  explicit MomentumOf(CodecSpec& spec)
      : lr_(spec.NonNegative("lr")),
        momentum_(spec.Fraction("momentum")),
        weight_decay_(spec.NonNegative("weight_decay")) {}
  double lr() const override { return lr_; }
  size_t StateCount(const ValueShape& shape) const override { return shape.count(); }

  template <typename T>
  void Step(const UpdateCall& call) const {
    const T rate = static_cast<T>(call.lr), momentum = static_cast<T>(momentum_), decay = static_cast<T>(weight_decay_);
    RunAll<1, T>(call, [=](T& value, T& buffer, T gradient) __attribute__((always_inline)) {
      const T direction = Decayed(gradient, value, decay);
      buffer = momentum * buffer + direction;
      value -= rate * (kNesterov ? direction + momentum * buffer : buffer);
    });
  }

 private:
  const double lr_, momentum_, weight_decay_;
};

}  // namespace

Result<UpdatePointer> MakeSgd(CodecSpec& spec) { return Made<Sgd>(spec); }
Result<UpdatePointer> MakeMomentum(CodecSpec& spec) { return Made<MomentumOf<false>>(spec); }
Result<UpdatePointer> MakeNesterov(CodecSpec& spec) { return Made<MomentumOf<true>>(spec); }

}  // namespace byteps_like
