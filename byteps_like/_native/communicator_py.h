// The communicator as Python holds it. Other files of the binding add what belongs to them (launches, host groups).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "byteps_like/_native/events.h"
#include "collectives/communicator.h"

namespace byteps_like {

class PyCommunicator {
 public:
  explicit PyCommunicator(MeshOptions options);  // GIL held; listens
  ~PyCommunicator();

  Communicator& get();  // raises the typed error in a forked child
  const std::shared_ptr<CompletionQueue>& completed() const { return completed_; }
  void Close();  // without the GIL

 private:
  const ForkGuard fork_guard_;
  const std::shared_ptr<CompletionQueue> completed_ = std::make_shared<CompletionQueue>();
  std::unique_ptr<Communicator> communicator_;
};

// Waits without the GIL, in slices so that Ctrl-C is heard. False at the deadline; raises what it failed with.
bool WaitFor(Completion& completion, double seconds);

}  // namespace byteps_like
