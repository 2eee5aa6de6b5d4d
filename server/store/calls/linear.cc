// Linear algebra on values: all that an optimizer such as L-BFGS needs of servers. Elements are computed in their own
// type, each operation rounded by itself; integers wrap. Sums are made in fp64, in 16 lanes.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "csrc/base/decimal.h"
#include "server/store/calls/commands.h"
#include "server/update/loop.h"

namespace byteps_like {
namespace {

constexpr double kMostInteger = 9223372036854775808.0;  // one more than int64 holds
constexpr size_t kLanes = 16;

// Calls work(x of that type) for a type of values.
template <typename Work>
void WithType(DType dtype, const Work& work) {
  if (dtype == DType::kFloat32) return work(float{});
  if (dtype == DType::kFloat64) return work(double{});
  work(int64_t{});
}

template <typename T>
const T* Values(const CommandRun& run, size_t tensor) {
  return reinterpret_cast<const T*>(run.values[tensor]);
}

template <typename T>
T* Results(const CommandRun& run, size_t tensor) {
  return reinterpret_cast<T*>(run.results[tensor]);
}

template <typename T>
double DotOf(const T* x, const T* y, size_t count) {
  double lanes[kLanes] = {};
  InBestSet([&]() __attribute__((always_inline)) {
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(y[i + lane]);
    for (size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  });
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

// out = a·x, or y + a·x where there is a y.
template <typename T>
void Combine(const T* x, const T* y, double a, T* out, size_t count) {
  using Number = std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, T>;  // which may wrap
  const auto factor = static_cast<Number>(static_cast<T>(a));
  const auto times = [=](T value) __attribute__((always_inline)) { return factor * static_cast<Number>(value); };
  InBestSet([&]() __attribute__((always_inline)) {
    if (y == nullptr) {
      for (size_t i = 0; i < count; ++i) out[i] = static_cast<T>(times(x[i]));
    } else {
      for (size_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<Number>(y[i]) + times(x[i]));
    }
  });
}

// Of `tensors` tensors, with the scalar a, if any.
class Linear : public Command {
 public:
  struct Form {
    const char* name;
    size_t tensors;
    size_t writes;  // so many, the last
    bool scales;
  };
  explicit Linear(const Form& form) : form_(form) {}

  Status Check(size_t tensors, DType dtype, const Figures& scalars) const override {
    const std::string name = form_.name;
    if (tensors != form_.tensors)
      return Status(Code::kInvalid,
                    name + " is of " + std::to_string(form_.tensors) + " tensors, not of " + std::to_string(tensors));
    const bool fits = scalars.size() == (form_.scales ? 1 : 0) && (!form_.scales || scalars.front().first == "a");
    if (!fits) return Status(Code::kInvalid, name + (form_.scales ? " has one scalar, a" : " has no scalars"));
    if (!form_.scales) return {};
    const double a = scalars.front().second;
    if (!std::isfinite(a)) return Status(Code::kInvalid, name + ": a is " + DecimalOf(a) + ", which is not finite");
    if (dtype == DType::kInt64 && (a != std::floor(a) || std::fabs(a) >= kMostInteger))
      return Status(Code::kInvalid, name + ": a is " + DecimalOf(a) + ", and integers need a whole number");
    return {};
  }
  bool Writes(size_t tensor) const override { return tensor + form_.writes >= form_.tensors; }

 private:
  const Form form_;
};

class Dot final : public Linear {
 public:
  Dot() : Linear({"dot", 2, 0, false}) {}
  Status Run(const CommandRun& run) const override {
    WithType(run.dtype, [&](auto zero) {
      using T = decltype(zero);
      AddTo(run.figures, "dot", DotOf(Values<T>(run, 0), Values<T>(run, 1), run.count));
    });
    return {};
  }
};

class Axpy final : public Linear {
 public:
  Axpy() : Linear({"axpy", 2, 1, true}) {}
  Status Run(const CommandRun& run) const override {
    WithType(run.dtype, [&](auto zero) {
      using T = decltype(zero);
      Combine(Values<T>(run, 0), Values<T>(run, 1), run.scalars.front().second, Results<T>(run, 1), run.count);
    });
    return {};
  }
};

class Scale final : public Linear {
 public:
  Scale() : Linear({"scale", 1, 1, true}) {}
  Status Run(const CommandRun& run) const override {
    WithType(run.dtype, [&](auto zero) {
      using T = decltype(zero);
      Combine<T>(Values<T>(run, 0), nullptr, run.scalars.front().second, Results<T>(run, 0), run.count);
    });
    return {};
  }
};

class CopyTo final : public Linear {
 public:
  CopyTo() : Linear({"copy", 2, 1, false}) {}
  Status Run(const CommandRun& run) const override {
    std::memcpy(run.results[1], run.values[0], run.count * SizeOf(run.dtype));
    return {};
  }
};

class Merge final : public Linear {
 public:
  Merge() : Linear({"merge", 2, 2, true}) {}
  Status Run(const CommandRun& run) const override {
    WithType(run.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T *const other = Values<T>(run, 0), *const own = Values<T>(run, 1);
      T* const apart = Results<T>(run, 0);
      Combine<T>(own, other, -1, apart, run.count);
      Combine<T>(apart, own, run.scalars.front().second, Results<T>(run, 1), run.count);
    });
    return {};
  }
};

}  // namespace

CommandPointer MakeDot() { return std::make_unique<const Dot>(); }
CommandPointer MakeAxpy() { return std::make_unique<const Axpy>(); }
CommandPointer MakeScale() { return std::make_unique<const Scale>(); }
CommandPointer MakeCopy() { return std::make_unique<const CopyTo>(); }
CommandPointer MakeMerge() { return std::make_unique<const Merge>(); }

}  // namespace byteps_like
