// Adagrad, with a sum of squares for each element or for each row.
#include <algorithm>

#include "server/update/loop.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

class Adagrad final : public FloatUpdate<Adagrad> {
 public:
  explicit Adagrad(CodecSpec& spec)
      : lr_(spec.NonNegative("lr")),
        lr_decay_(spec.NonNegative("lr_decay")),
        weight_decay_(spec.NonNegative("weight_decay")),
        initial_(spec.NonNegative("initial")),
        eps_(spec.NonNegative("eps")) {}
  double lr() const override { return lr_; }
  size_t StateCount(const ValueShape& shape) const override { return shape.count(); }

  void Begin(DType dtype, const ValueShape& shape, void* state) const override {
    if (dtype == DType::kFloat32) {
      std::fill_n(static_cast<float*>(state), shape.count(), static_cast<float>(initial_));
    } else {
      std::fill_n(static_cast<double*>(state), shape.count(), initial_);
    }
  }

  template <typename T>
  void Step(const UpdateCall& call) const {
    const T rate = static_cast<T>(call.lr / (1 + static_cast<double>(call.step - 1) * lr_decay_));
    const T decay = static_cast<T>(weight_decay_), eps = static_cast<T>(eps_);
    RunAll<1, T>(call, [=](T& value, T& squares, T gradient) __attribute__((always_inline)) {
      const T direction = Decayed(gradient, value, decay);
      squares += direction * direction;
      value -= rate * direction / (Root(squares) + eps);
    });
  }

 private:
  const double lr_, lr_decay_, weight_decay_, initial_, eps_;
};

class RowAdagrad final : public FloatUpdate<RowAdagrad> {
 public:
  explicit RowAdagrad(CodecSpec& spec) : lr_(spec.NonNegative("lr")), eps_(spec.NonNegative("eps")) {}
  double lr() const override { return lr_; }
  size_t StateCount(const ValueShape& shape) const override { return shape.rows; }

  template <typename T>
  void Step(const UpdateCall& call) const {
    const size_t width = call.shape.width;
    if (width == 0) return;
    const T rate = static_cast<T>(call.lr), eps = static_cast<T>(eps_);
    const Arrays<T> arrays(call);
    InBestSet([&]() __attribute__((always_inline)) {
      for (size_t row = 0; row < call.shape.rows; ++row) {
        const T* const gradient = arrays.gradient + row * width;
        Squares squares;
        squares.Add(0, width, [&](size_t i) __attribute__((always_inline)) { return gradient[i]; });
        T& sum = arrays.first[row];
        sum += static_cast<T>(squares.Total() / static_cast<double>(width));
        const T divisor = Root(sum) + eps;
        Run<0>(arrays, row * width, (row + 1) * width,
               [=](T& value, T own) __attribute__((always_inline)) { value -= rate * own / divisor; });
      }
    });
  }

 private:
  const double lr_, eps_;
};

}  // namespace

Result<UpdatePointer> MakeAdagrad(CodecSpec& spec) { return Made<Adagrad>(spec); }
Result<UpdatePointer> MakeRowAdagrad(CodecSpec& spec) { return Made<RowAdagrad>(spec); }

}  // namespace byteps_like
