// One program being run: its steps' progress, its messages, its end. Everything runs on the loop's thread, except for
// what Completion says; it may be created on any thread.
//
// A step's progress is a prefix in bytes. Advancing it wakes the steps that wait for those bytes. Woken steps enter a
// queue that the outermost call works off, so calls between the exchange and the run never nest deeply.
#pragma once

#include <memory>
#include <string>

#include "collectives/execution/executor.h"
#include "collectives/execution/scratch_pool.h"

namespace byteps_like {

class Run;

// The executor, as a run sees it.
class RunOwner {
 public:
  RunOwner(Exchange& exchange) : exchange(exchange) {}
  virtual void OnEnded(Run& run) = 0;  // the owner keeps it until no call of it can be on the stack

  Exchange& exchange;
  ScratchPool pool;

 protected:
  ~RunOwner() = default;
};

class Run final : public Completion, public Call, private EventLoop::Deferred {
 public:
  Run(RunOwner& owner, RunOptions options);
  ~Run() override;

  bool Wait(Deadline deadline) override;
  void Start();
  void Refuse(const Status& why);  // instead of Start
  // Here and on all ranks; does nothing once it has ended. Its end follows when no peer writes into its memory any
  // more.
  void Abort(const Status& why);
  void Sever(const Status& why);  // the same, at once: cuts links if need be
  Deadline deadline() const { return deadline_; }
  // The deadline has passed: aborts, or gives the other ranks another second to show which of them are silent (the
  // deadline moves).
  void OnDeadline();

  size_t slot = 0;  // of the owner

 private:
  static constexpr uint32_t kNone = ~0u;

  struct State {
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    uint64_t progress = 0;
    uint64_t wanted = 0;         // of a receive that was told "not now": the prefix that it needs
    uint32_t next = kNone;       // in the queue of woken steps
    uint32_t next_copy = kNone;  // in the queue of copies
    int64_t begun = 0;           // TraceClock at its first bytes; 0 while not recording
    bool queued = false, copying = false, posted = false, arrived = false, done = false;
    bool offerable = false;  // of a receive: its place is to be offered once it is the peer's alone
  };
  struct Send : SendMessage {
    uint32_t step = 0;
  };
  struct Receive : ReceiveMessage {
    uint32_t step = 0;
  };
  struct Queue {
    uint32_t first = kNone, last = kNone;
  };

  // Call
  void OnSent(SendMessage& message) override;
  std::byte* PlaceFor(ReceiveMessage& message, uint64_t offset, uint32_t length) override;
  void OnBytes(ReceiveMessage& message, uint64_t offset, const std::byte* bytes, uint32_t length) override;
  void OnFailed(const Status& why) override;
  // EventLoop::Deferred: a slice of a copy.
  void RunDeferred() override;

  // run.cc
  Status Prepare();
  void PrepareSteps(std::byte* memory);
  void PostReceives();
  bool MayOffer(uint32_t step) const;
  void End(const Status& status);
  std::string Overdue() const;
  std::string WaitingStep() const;

  // run_steps.cc
  bool IsFree(uint32_t step) const;       // every step that it waits for is done
  uint64_t LimitOf(uint32_t step) const;  // the prefix that the steps it waits for allow
  void Wake(uint32_t step);
  void Drain();
  void Try(uint32_t step);
  void TrySend(uint32_t step);
  void TryReceive(uint32_t step);
  void TryOffer(uint32_t step);
  void TryCopy(uint32_t step);
  void CopySlice(uint32_t step, uint64_t bytes);
  void Reduce(uint32_t step, uint64_t offset, const std::byte* bytes, uint32_t length);
  void Progress(uint32_t step, uint64_t progress);
  void TraceStep(uint32_t step);

  RunOwner& owner_;
  const std::shared_ptr<LoopGate> gate_;
  const uint32_t rank_;
  RunOptions options_;
  const Plan& plan_;
  const Clock::time_point launched_;
  Deadline deadline_;
  bool granted_ = false;  // the second beyond the deadline
  bool started_ = false, draining_ = false;
  bool ended_ = false;      // no step is done any more
  bool over_ = false;       // the caller knows
  uint32_t remaining_ = 0;  // steps that aren't done
  Queue woken_, copies_;
  std::unique_ptr<std::byte[]> memory_;  // the three arrays
  State* states_ = nullptr;
  Send* sends_ = nullptr;
  Receive* receives_ = nullptr;
  ScratchBlock scratch_;
};

}  // namespace byteps_like
