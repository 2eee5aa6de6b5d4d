// The one place where time comes from: the steady clock, or that of the simulation in which the caller runs.
#pragma once

#include <chrono>

#include "csrc/base/simulation.h"

namespace byteps_like {

struct Clock {
  using System = std::chrono::steady_clock;
  using rep = System::rep;
  using period = System::period;
  using duration = System::duration;
  using time_point = System::time_point;
  static constexpr bool is_steady = true;

  static time_point now() {
    const Simulation* const simulation = TheSimulation();
    return simulation == nullptr ? System::now() : simulation->Now();
  }
};
using Deadline = Clock::time_point;

}  // namespace byteps_like
