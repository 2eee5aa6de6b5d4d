// Adam and AdamW.
#include "server/update/moments.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

// kDecoupled (AdamW): weight decay shrinks the value before the step; otherwise it is part of the gradient.
template <bool kDecoupled>
class AdamOf final : public FloatUpdate<AdamOf<kDecoupled>> {
 public:
  explicit AdamOf(CodecSpec& spec)
      : lr_(spec.NonNegative("lr")), moments_(spec), weight_decay_(spec.NonNegative("weight_decay")) {}
  double lr() const override { return lr_; }
  size_t StateCount(const ValueShape& shape) const override { return 2 * shape.count(); }

  template <typename T>
  void Step(const UpdateCall& call) const {
    const MomentStep<T> moments(moments_, call.lr, call.step);
    const T kept = static_cast<T>(kDecoupled ? 1 - call.lr * weight_decay_ : 1);
    const T decay = static_cast<T>(kDecoupled ? 0 : weight_decay_);
    RunAll<2, T>(call, [=](T& value, T& first, T& second, T gradient) __attribute__((always_inline)) {
      moments.Advance(first, second, Decayed(gradient, value, decay));
      value = value * kept - moments.Direction(first, second);
    });
  }

 private:
  const double lr_;
  const Moments moments_;
  const double weight_decay_;
};

}  // namespace

Result<UpdatePointer> MakeAdam(CodecSpec& spec) { return Made<AdamOf<false>>(spec); }
Result<UpdatePointer> MakeAdamW(CodecSpec& spec) { return Made<AdamOf<true>>(spec); }

}  // namespace byteps_like
