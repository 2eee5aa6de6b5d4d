// byteps_like._core.Sim: a simulated job, stepped from Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "byteps_like/_native/events.h"
#include "csrc/sim/job.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using sim::Job;
using sim::Plan;

// Steps between looks at whether the interpreter has a signal to handle.
constexpr int kStepsAtOnce = 100'000;

Job::Options Checked(const std::string& defect, bool trace) {
  if (!defect.empty() && sim::MakeDefect(defect) == nullptr)
    ThrowIfFailed(Status(Code::kInvalid, "there is no defect \"" + defect + "\""));
  return {.defect = defect, .keeps_lines = trace};
}

std::unique_ptr<Job> MakeJob(uint64_t seed, const std::string& defect, bool trace) {
  return std::make_unique<Job>(sim::DrawPlan(seed), Checked(defect, trace));
}

std::unique_ptr<Job> MakeSmaller(const Job& job, const std::string& defect, bool trace) {
  const Job::Options options = Checked(defect, trace);
  const Plan plan = BlockWithoutGil([&] { return sim::Shrink(job.plan(), {.defect = defect}); });
  return std::make_unique<Job>(plan, options);
}

// In one piece, on this thread: a world can't move to another one.
void Run(Job& job) {
  const auto some = [&job] {
    for (int i = 0; i < kStepsAtOnce; ++i)
      if (!job.Step()) return false;
    return true;
  };
  while (BlockWithoutGil(some))
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

void BindSim(nb::module_& m) {
  nb::class_<Job>(m, "Sim",
                  "A simulated job (csrc/sim), drawn from a seed: its workers, servers, links and faults. On the "
                  "thread that made it.")
      .def(nb::new_(&MakeJob), nb::arg("seed"), nb::arg("defect") = "", nb::arg("trace") = false,
           "`defect`: one of `Sim.defects()`, planted in it. `trace`: keep lines. Raises InvalidArgumentError.")
      .def("step", &Job::Step, "Goes on by a turn of one thread, or one event. False: it is over.")
      .def("run", &Run, "Goes on to the end, without the GIL.")
      .def("shrink", &MakeSmaller, nb::arg("defect") = "", nb::arg("trace") = false,
           "The smallest job found that still breaks a rule, ready to be run. Runs many.")
      .def_prop_ro(
          "plan", [](const Job& self) { return self.plan().Describe(); },
          "Who takes part, in a line, and what goes wrong, a line each.")
      .def_prop_ro("heading", [](Job& self) { return self.history().heading(); })
      .def(
          "lines", [](Job& self) { return self.history().TakeLines(); }, "Of the trace, since the last call.")
      .def_prop_ro(
          "complaints", [](const Job& self) { return self.outcome().complaints; },
          "Rules that it has broken; complete when it is over.")
      .def_prop_ro(
          "history", [](const Job& self) { return self.outcome().history; },
          "A number of all that has happened: the same for the same seed.")
      .def_prop_ro("events", [](const Job& self) { return self.outcome().events; })
      .def_prop_ro(
          "seconds", [](const Job& self) { return self.outcome().seconds; }, "Of simulated time.")
      .def_prop_ro(
          "finished", [](const Job& self) { return self.outcome().finished; }, "Workers that ended well,")
      .def_prop_ro(
          "failed", [](const Job& self) { return self.outcome().failed; }, "that ended with an error,")
      .def_prop_ro(
          "killed", [](const Job& self) { return self.outcome().killed; }, "and that were killed.")
      .def_static("defects", &sim::DefectNames);
}

}  // namespace byteps_like
