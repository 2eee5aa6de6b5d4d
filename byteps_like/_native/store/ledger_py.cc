// byteps_like._core.Ledger: the ledger of one store key, for its comparison with byteps_like/store/ledger.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "byteps_like/_native/events.h"
#include "server/store/ledger.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

// (source, clock, version), which is 0 for what is late.
using Events = std::vector<std::tuple<uint32_t, int64_t, int64_t>>;

Events Listed(const std::vector<Settled>& settled) {
  Events events;
  for (const Settled& one : settled) events.emplace_back(one.push.source, one.push.clock, one.version);
  return events;
}

class PyLedger {
 public:
  PyLedger(std::string_view policy, uint32_t sources, double now)
      : policy_(Made(policy)), ledger_(*policy_, sources, now) {}

  Events Push(uint32_t source, int64_t clock, int64_t base, double now, bool last) {
    std::vector<Settled> events;
    ThrowIfFailed(ledger_.Push({.source = source, .clock = clock, .base = base, .last = last}, now, &events));
    return Listed(events);
  }
  Events PassTime(double now) {
    std::vector<Settled> events;
    ledger_.PassTime(now, &events);
    return Listed(events);
  }
  Events Lose(uint32_t source, double now) {
    std::vector<Settled> events;
    ledger_.Lose(source, now, &events);
    return Listed(events);
  }
  int64_t Join(uint32_t source) { return ledger_.Join(source); }
  void Observe(double square, double noise) { ledger_.Observe({square, noise}); }
  bool MayRead(uint32_t source) const { return ledger_.MayRead(source); }
  std::vector<uint32_t> CutOff() const { return ledger_.CutOff(); }
  std::optional<double> ReadyAt() const { return policy_->ReadyAt(ledger_); }

 private:
  static std::unique_ptr<StorePolicy> Made(std::string_view text) {
    auto made = MakeStorePolicy(text);
    ThrowIfFailed(made.status());
    return std::move(*made);
  }

  std::unique_ptr<StorePolicy> policy_;
  Ledger ledger_;
};

}  // namespace

void BindLedger(nb::module_& m) {
  nb::class_<PyLedger>(m, "Ledger")
      .def(nb::init<std::string_view, uint32_t, double>(), nb::arg("policy"), nb::arg("sources"), nb::arg("now") = 0.0)
      .def("push", &PyLedger::Push, nb::arg("source"), nb::arg("clock"), nb::arg("base"), nb::arg("now"),
           nb::arg("last") = true)
      .def("pass_time", &PyLedger::PassTime)
      .def("lose", &PyLedger::Lose)
      .def("join", &PyLedger::Join)
      .def("observe", &PyLedger::Observe, nb::arg("square"), nb::arg("noise"))
      .def("may_read", &PyLedger::MayRead)
      .def("cut_off", &PyLedger::CutOff)
      .def("ready_at", &PyLedger::ReadyAt);
}

}  // namespace byteps_like
