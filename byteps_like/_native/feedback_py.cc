// byteps_like._core.compensate and settle: error feedback and momentum of the engine, for the routes that Python
// drives.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>

#include "byteps_like/_native/events.h"
#include "csrc/engine/coding/feedback.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace byteps_like {
namespace {

using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = std::optional<Floats>;

float* AddressOf(const Memory& memory, size_t count) {
  if (!memory) return nullptr;
  if (memory->size() != count) throw std::invalid_argument("residual and momentum are as long as the gradient");
  return memory->data();
}

void PyCompensate(Floats x, const Memory& residual, const Memory& momentum, float mu, bool nesterov, float scale) {
  const size_t count = x.size();
  const Feedback feedback{AddressOf(residual, count), AddressOf(momentum, count), mu, nesterov};
  const nb::gil_scoped_release release;
  Compensate(feedback, scale, x.data(), count);
}

void PySettle(Floats x, const Memory& residual, const Memory& momentum, bool masked) {
  const size_t count = x.size();
  Feedback feedback{AddressOf(residual, count), AddressOf(momentum, count)};
  feedback.masked = masked && residual && momentum;
  const nb::gil_scoped_release release;
  Settle(feedback, x.data(), count);
}

}  // namespace

void BindFeedback(nb::module_& m) {
  m.def("compensate", PyCompensate, "x"_a, "residual"_a.none(), "momentum"_a.none(), "mu"_a, "nesterov"_a, "scale"_a,
        "Before encoding: momentum and what was left out, into x");
  m.def("settle", PySettle, "x"_a, "residual"_a.none(), "momentum"_a.none(), "masked"_a,
        "After it: masks the momentum, forgets what isn't finite");
}

}  // namespace byteps_like
