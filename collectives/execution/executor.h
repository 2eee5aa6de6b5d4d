// Runs programs over the exchange. No thread per operation: all runs of a process share its mesh's loop; any number on
// any lanes are in flight at once. A run reads and writes the user's tensors in place; scratch is taken from a pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/completion.h"
#include "collectives/exchange/exchange.h"
#include "collectives/plan.h"

namespace byteps_like {

struct RunOptions {
  CallId id;
  std::string description;
  std::shared_ptr<const Plan> plan;
  DType dtype{};
  Op op{};
  uint32_t divisor = 1;              // for averages: applied by the steps that are marked `final`
  const std::byte* input = nullptr;  // not used where the program has an alias
  std::byte* output = nullptr;
  TrafficClass traffic = TrafficClass::kGradient;
  int32_t priority = 0;
  uint32_t segment_bytes = kDefaultSegment;
  double timeout = 1800;  // seconds; then the call is aborted everywhere with kTimeout, naming the silent ranks
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Any thread; never blocks. Failures, also those found at once, are the completion's status. The buffers belong to
  // the run until it is done.
  virtual std::shared_ptr<Completion> Launch(RunOptions options) = 0;
  // Aborts it on all ranks with `why`; does nothing once it is done.
  virtual void Cancel(const std::shared_ptr<Completion>& run, const Status& why) = 0;
  // The same for all runs of a lane that were launched before.
  virtual void CancelLane(uint64_t lane, const Status& why) = 0;
};

// Destroy it on the loop's thread or when the loop has stopped; calls in flight then end with kClosed.
std::unique_ptr<Executor> MakeExecutor(Exchange& exchange);

}  // namespace byteps_like
