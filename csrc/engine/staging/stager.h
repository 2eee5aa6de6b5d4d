// Moves partitions of GPU tensors between the device and their mirror in page-locked host memory: down to go over the
// network, raw or encoded on the GPU, and up again. Several are under way at a time, each on a lane (a stream of ours;
// csrc/engine/staging/lane.h).
//
// A partition's first copy must wait for the work that the user's stream held at Submit. That work may wait for other
// operations and, through other ranks, even for some that begin later. So one lane waits for the users' streams: it
// takes the oldest partition, whose copy then begins without our help. The other lanes take partitions whose streams
// have finished that work, the most urgent first, and never wait. Therefore each such partition gets a lane, whatever
// the others wait for, and the only deadlocks are those of the program itself. We check which streams have finished
// when a lane is free: usually when the oldest partition's has, whose end wakes us, and every millisecond, since
// another stream may be first.
//
// One thread issues all copies. It never synchronises with the device, and never allocates or frees device memory,
// which may synchronise. Host functions in the lanes' streams wake it and hand partitions on. Callers' streams wait for
// the operation's gate (csrc/gpu/gate.h), which is opened by the thread that ends the operation, whether it succeeds or
// fails.
//
// After a failure of the driver nothing more is issued. A partition ends when its stream is done or dead, so the device
// uses no memory of the operation once it is over. If a stream doesn't end within EngineOptions::drain_timeout, its
// partition ends all the same with an error that says so, and the stager's memory there is never freed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/thread.h"
#include "csrc/engine/engine_context.h"
#include "csrc/engine/operation.h"
#include "csrc/engine/staging/lane.h"
#include "csrc/gpu/gate.h"
#include "csrc/transport/stream.h"

namespace byteps_like {

class Stager {
 public:
  static Result<std::unique_ptr<Stager>> Create(PartSink& sink, const EngineContext& context, std::shared_ptr<Gpu> gpu,
                                                const KernelTable& kernels);
  ~Stager();
  Stager(const Stager&) = delete;

  // Memory for the rounds of these partitions, until it is given back. Callers', before the first Record for them; it
  // calls the driver, and may block.
  Status Reserve(std::span<const Coding* const> codings);
  void Release(std::span<const Coding* const> codings);

  // Submit's; the operation takes the gate. kInvalid while a graph is captured on `stream`.
  Result<UserWork*> Record(uint64_t stream, uint32_t parts);
  void Begin(Staging& staging);  // after Record; `staging` is set up
  void Drop(UserWork* start);    // nothing will begin with it

  // Any thread: the result of a part, or of its prelude, is in host memory; or it has failed.
  void Landed(Part& part, const Status& status);
  void Stop();   // partitions on a lane run on; all others end with kClosed, also those that land later
  void Drain();  // after Stop, when no operation is on the wire: until no lane is busy
  // Called on the engine's thread, which notices, as ours can't, that our thread doesn't come back from the driver.
  // Returns whether there is anything to watch.
  bool Watch();
  // A stream has not ended: the device may still use this object's memory, so it must not be destroyed.
  bool stuck() const;

  const LaneSupplies& supplies() const { return supplies_; }
  const Gpu& gpu() const { return *supplies_.gpu; }
  void AddKernels(const KernelTable& kernels);  // under the engine's mutex, as the next
  bool encodes() const { return supplies_.feedback != nullptr; }

 private:
  enum Group : uint8_t { kDowns, kUps, kGroups };
  struct Slot {  // a lane, and the partition on it
    Stager* stager = nullptr;
    std::unique_ptr<Lane> lane;
    bool waits = false;  // for users' streams: it takes the oldest
    // Under the mutex:
    Staging* staging = nullptr;
    bool issuing = false;  // the thread is at it
    bool again = false;    // it goes on on this lane
    bool ending = false;   // another thread hands it on
    Deadline since{};      // its stage was issued
    bool told = false;     // that it takes long
  };
  struct Asked {
    UserWork* start;
    uint64_t number;
    bool fired;
  };
  using Lock = std::unique_lock<std::mutex>;

  Stager(PartSink& sink, const EngineContext& context, std::shared_ptr<Gpu> gpu);
  Status Prepare(const KernelTable& kernels);

  // The thread's; `lock` is let go while the driver or the engine is called.
  void Work();
  bool IssueNext(Lock& lock);
  Staging* Choose(Group group, bool oldest);
  bool AwaitsStarts() const;
  void AskStarts(Lock& lock);
  bool AskFirsts(Lock& lock);
  void Sleep(Lock& lock);
  void Issue(Slot& slot, Lock& lock);
  void Look(Lock& lock);
  void Break(const Status& status, Lock& lock);
  bool EndQueued(Lock& lock);
  void DrainBroken(Lock& lock);
  void GiveUp(const Status& why, Lock& lock);

  static void Fired(void* slot);
  void Finish(Slot& slot);
  void HandOn(Staging& staging, const Status& status);
  void Free(Slot& slot);  // under the mutex, as the next
  Result<UserWork*> Unused();
  void Queue(Group group, Staging& staging);
  void LetGo(Staging& staging);
  Status WhyNoMore() const;
  std::vector<Staging*> TakeQueued();
  bool Any(bool (*is)(const Slot&)) const;
  bool Busy() const;
  void End(Part& part, const Status& status);

  PartSink& sink_;
  const EngineContext& context_;
  const Clock::duration longest_drain_;
  LaneSupplies supplies_;
  std::shared_ptr<GpuGates> gates_;
  std::vector<std::unique_ptr<Slot>> slots_[kGroups];
  mutable std::mutex mutex_;  // guards the members below; never held while the driver is called
  ConditionVariable changed_;
  std::vector<Staging*> queues_[kGroups];  // in no order
  std::vector<std::unique_ptr<UserWork>> starts_;
  std::vector<UserWork*> free_starts_, late_starts_;  // the latter, not known to have fired, in the order they began in
  uint64_t order_ = 0, uses_ = 0;
  bool ending_ = false, joined_ = false, stuck_ = false;
  Status broken_;
  Deadline broken_at_{};
  std::vector<Asked> asked_;  // the thread's, like the members below
  Deadline looked_{};
  Thread thread_;
};

}  // namespace byteps_like
