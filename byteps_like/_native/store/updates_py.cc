// byteps_like._core.Update: a native update on arrays of the caller (NumPy, or anything with DLPack on the CPU), for
// tests and benchmarks. Types and sizes are checked here, since updates trust theirs; the interpreter lock is released
// while they work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "byteps_like/_native/events.h"
#include "byteps_like/_native/store/values_py.h"
#include "server/update/updates.h"
#include "server/update/yardstick.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using FloatSource = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

void Need(const char* what, size_t bytes, size_t needed) {
  if (bytes == needed) return;
  throw std::invalid_argument(std::string(what) + " has " + std::to_string(bytes) + " bytes, " +
                              std::to_string(needed) + " are needed");
}

class PyUpdate {
 public:
  explicit PyUpdate(std::string_view spec) {
    auto made = MakeUpdate(spec);
    ThrowIfFailed(made.status());
    update_ = std::move(*made);
  }

  bool whole() const { return update_->whole(); }
  double lr() const { return update_->lr(); }
  bool Takes(int dtype) const { return dtype >= 0 && dtype < kDTypeCount && update_->Takes(static_cast<DType>(dtype)); }
  size_t StateCount(size_t rows, size_t width) const { return update_->StateCount({rows, width}); }

  void Begin(ValueSource value, ValueArray state) const {
    NeedState(value, state);
    update_->Begin(TypeOf(value), ShapeOf(value), state.data());
  }

  void Apply(ValueArray value, ValueArray state, ValueSource gradient, std::optional<double> lr, uint64_t step) const {
    const DType dtype = TypeOf(value);
    if (!update_->Takes(dtype)) throw std::invalid_argument(std::string("takes no values of ") + NameOf(dtype));
    if (TypeOf(gradient) != dtype) throw std::invalid_argument("value and gradient are of two types");
    Need("gradient", gradient.nbytes(), value.nbytes());
    NeedState(value, state);
    const UpdateCall call{.dtype = dtype,
                          .shape = ShapeOf(value),
                          .value = value.data(),
                          .state = state.data(),
                          .gradient = gradient.data(),
                          .lr = lr.value_or(update_->lr()),
                          .step = step};
    const auto applied = [&] {
      const nb::gil_scoped_release release;
      return update_->Apply(call);
    }();
    ThrowIfFailed(applied.status());
  }

 private:
  template <typename A>
  void NeedState(const A& value, const ValueArray& state) const {
    Need("state", state.nbytes(), update_->StateCount(ShapeOf(value)) * SizeOf(TypeOf(value)));
  }

  UpdatePointer update_;
};

bool IsFiniteArray(ValueSource gradient) {
  const DType dtype = TypeOf(gradient);
  const nb::gil_scoped_release release;
  return IsFinite(dtype, gradient.data(), gradient.size());
}

void Stream(Floats value, Floats state, FloatSource gradient) {
  Need("gradient", gradient.nbytes(), value.nbytes());
  const size_t slots = value.size() == 0 ? 0 : state.size() / value.size();
  if (slots > 2) throw std::invalid_argument("state for up to two numbers per element");
  Need("state", state.nbytes(), slots * value.nbytes());
  const nb::gil_scoped_release release;
  StreamUpdate(value.data(), state.data(), slots, gradient.data(), value.size());
}

}  // namespace

void BindUpdates(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PyUpdate>(m, "Update", "What a store key does with a gradient; `spec` is canonical, with all keys.")
      .def(nb::init<std::string_view>(), "spec"_a)
      .def_prop_ro("whole", &PyUpdate::whole)
      .def_prop_ro("lr", &PyUpdate::lr)
      .def("takes", &PyUpdate::Takes, "dtype"_a, "Whether values may be of the dtype with this code.")
      .def("state_count", &PyUpdate::StateCount, "rows"_a, "width"_a, "Elements of state for a value of that shape.")
      .def("begin", &PyUpdate::Begin, "value"_a, "state"_a, "Writes the state before the first update of `value`.")
      .def("apply", &PyUpdate::Apply, "value"_a, "state"_a, "gradient"_a, "lr"_a = nb::none(), "step"_a = 1,
           "Changes value and state in place. The first dimension of the value counts rows.");
  nb::module_ u = m.def_submodule("updates", "What concerns all updates.");
  u.def("names", UpdateNames);
  u.def("is_finite", IsFiniteArray, "gradient"_a, "Whether there is neither an infinity nor a NaN.");
  u.def("stream", Stream, "value"_a, "state"_a, "gradient"_a,
        "Adds the gradient to the value and to each array of state: what updates are measured against.");
}

}  // namespace byteps_like
