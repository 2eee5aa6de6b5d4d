// A group's calls in the order in which this rank made them, and the choice of the thread that drives them. Private to
// collectives/host_*.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/host/host_machine.h"

namespace byteps_like {

class HostOperation;

class LocalHostGroup final : public HostGroup, public std::enable_shared_from_this<LocalHostGroup> {
 public:
  LocalHostGroup(std::shared_ptr<LocalArea> area, uint32_t slot, std::vector<uint32_t> members, uint32_t me);
  ~LocalHostGroup() override;

  Status Run(const HostCall& call, const std::function<bool()>& interrupted) override;
  std::shared_ptr<Completion> Launch(const HostCall& call) override;
  void Cancel(const std::shared_ptr<Completion>& call, const Status& why) override;
  void CancelAll(const Status& why);  // likewise, those of threads that block in Run, too

  const std::vector<uint32_t>& members() const { return machine_.members(); }
  bool WaitFor(HostTask& task, Deadline deadline);  // drives until it is done
  // Advances the calls, unless another thread does so now; true if anything has changed. `look_at_time` also ends calls
  // that are late.
  bool Drive(bool look_at_time);
  // Drive for a thread that is about to sleep: the thread that drives now does it once more, so nothing is overlooked.
  bool DriveOrAsk();
  bool idle() const { return Oldest() == nullptr; }     // no calls
  bool awaited() const { return waiters_.load() > 0; }  // a thread drives it for itself
  Deadline NextDeadline();

 private:
  void Enqueue(HostTask& task);
  HostTask* Oldest() const { return first_.load(std::memory_order_acquire); }
  void CancelTask(HostTask& task, const Status& why);
  void Mark(HostTask& task, const Status& why);  // as cancelled; with the queue's mutex
  bool TakeBaton(bool ask);
  bool DriveOn(bool look_at_time);  // with the baton
  void Finish(HostTask& task);
  void CheckTime(HostTask& task);
  void TraceCall(const HostTask& task) const;

  const std::shared_ptr<LocalArea> area_;
  HostMachine machine_;
  std::atomic<bool> driven_{false};  // the machine is some thread's
  std::atomic<bool> asked_{false};   // another has asked it to look again before it lets go
  std::atomic<int> waiters_{0};
  std::mutex mutex_;  // of the queue: who changes it, or is not the one that drives and looks into its tasks
  std::atomic<HostTask*> first_{nullptr};
  HostTask* last_ = nullptr;
};

}  // namespace byteps_like
