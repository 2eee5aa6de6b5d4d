// Programs, plans and the launch of their runs, for the binding of the communicator.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "collectives/execution/executor.h"

namespace byteps_like {

struct PyPlan {
  std::shared_ptr<const Plan> plan;
};

// `communicator.launch(...)`: scalars and the plan only, so that a call costs little. Needs no look at the arguments:
// whatever is wrong with them is the completion's status.
inline std::shared_ptr<Completion> LaunchPlan(Executor& executor, const PyPlan& plan, uint64_t lane, uint32_t call,
                                              std::string description, uint8_t dtype, uint8_t op, uint32_t divisor,
                                              uintptr_t input, uintptr_t output, uint8_t traffic, int32_t priority,
                                              uint32_t segment_bytes, double timeout) {
  RunOptions options;
  options.id = {lane, call};
  options.description = std::move(description);
  options.plan = plan.plan;
  options.dtype = static_cast<DType>(dtype);
  options.op = static_cast<Op>(op);
  options.divisor = divisor;
  options.input = reinterpret_cast<const std::byte*>(input);
  options.output = reinterpret_cast<std::byte*>(output);
  options.traffic = static_cast<TrafficClass>(traffic);
  options.priority = priority;
  options.segment_bytes = segment_bytes;
  options.timeout = timeout;
  return executor.Launch(std::move(options));
}

// Adds `launch` and `cancel` to the class that has the executor: `executor_of(Class&) -> Executor&`.
template <typename Class, typename ExecutorOf>
void BindLaunch(nanobind::class_<Class>& bound, ExecutorOf executor_of) {
  namespace nb = nanobind;
  bound.def(
      "launch",
      [executor_of](Class& self, const PyPlan& plan, uint64_t lane, uint32_t call, std::string description,
                    uint8_t dtype, uint8_t op, uint32_t divisor, uintptr_t input, uintptr_t output, uint8_t traffic,
                    int32_t priority, uint32_t segment_bytes, double timeout) {
        return LaunchPlan(executor_of(self), plan, lane, call, std::move(description), dtype, op, divisor, input,
                          output, traffic, priority, segment_bytes, timeout);
      },
      nb::arg("plan"), nb::arg("lane"), nb::arg("call"), nb::arg("description"), nb::arg("dtype"), nb::arg("op"),
      nb::arg("divisor"), nb::arg("input"), nb::arg("output"), nb::arg("traffic"), nb::arg("priority"),
      nb::arg("segment_bytes"), nb::arg("timeout"),
      "Runs the plan as call `call` of lane `lane`; returns its Completion at once. `input` and `output` are "
      "addresses, "
      "whose memory belongs to the run until it is done.");
  bound.def(
      "cancel",
      [executor_of](Class& self, std::shared_ptr<Completion> run, uint8_t code, std::string text) {
        executor_of(self).Cancel(run, Status(CodeFrom(static_cast<uint32_t>(code)), std::move(text)));
      },
      nb::arg("run"), nb::arg("code"), nb::arg("text"),
      "Fails what `launch` returned, on all ranks, soon; does nothing once it is done.");
}

}  // namespace byteps_like
