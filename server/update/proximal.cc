// Gradient descent with an L1 penalty, which makes most weights zero.
#include "server/update/loop.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

class Proximal final : public FloatUpdate<Proximal> {
 public:
  explicit Proximal(CodecSpec& spec) : lr_(spec.NonNegative("lr")), l1_(spec.NonNegative("l1")) {}
  double lr() const override { return lr_; }

  template <typename T>
  void Step(const UpdateCall& call) const {
    const T rate = static_cast<T>(call.lr), threshold = static_cast<T>(call.lr * l1_);
    RunAll<0, T>(call, [=](T& value, T gradient) __attribute__((always_inline)) {
      const T moved = value - rate * gradient;
      const T left = (moved < 0 ? -moved : moved) - threshold;
      value = left > 0 ? (moved < 0 ? -left : left) : T{0};
    });
  }

 private:
  const double lr_, l1_;
};

}  // namespace

Result<UpdatePointer> MakeProximal(CodecSpec& spec) { return Made<Proximal>(spec); }

}  // namespace byteps_like
