// Partitions of tensors on a GPU, between the device and their mirror in page-locked host memory: what comes down to go
// over the network, raw or encoded there, and what comes up again. Several are under way at a time, each on a lane (a
// stream of ours; csrc/engine/lane.h).
//
// What begins with a partition waits for what the user's stream held at Submit, which may wait for other operations,
// also, by way of what other ranks do, for some that begin later. So one lane waits for the user's streams: it takes
// the oldest partition, whose copy then begins without us. The others take what doesn't wait any more, the most urgent
// first, and never wait for anybody. Therefore each partition whose stream has come by gets a lane, whatever all others
// wait for, and there is no deadlock that the program hasn't made. Who has come by is asked when a lane is free: as a
// rule when the oldest has, whose end wakes us; and each millisecond, as another stream may come first.
//
// One thread issues all of it and never synchronises with the device, nor takes or frees its memory, which may do so;
// host functions in the lanes' streams tell it, and hand partitions on. Callers' streams wait for the operation's gate
// (csrc/gpu/gate.h), which is opened when the operation ends, by whichever thread ends it: also where it fails.
//
// After a failure of the driver nothing is issued any more; a partition ends when the stream that it was on is done or
// dead, so that nobody's memory is used by the device when the operation is over. If a stream doesn't end within
// EngineOptions::drain_timeout, its partition ends all the same, saying so, and what the stager has there is never
// freed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/engine_context.h"
#include "csrc/engine/lane.h"
#include "csrc/engine/operation.h"
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
  void Stop();   // what is on a lane runs on, all else ends with kClosed, also what lands later
  void Drain();  // after Stop, when no operation is on the wire: until no lane is busy
  // On the engine's thread, which sees what ours can't: that it doesn't come back from the driver. Whether there is
  // anything to watch.
  bool Watch();
  // A stream has not ended: the device may still use what is here, which must not be destroyed.
  bool stuck() const;

  const LaneSupplies& supplies() const { return supplies_; }
  const Gpu& gpu() const { return *supplies_.gpu; }
  void AddKernels(const KernelTable& kernels);  // under the engine's mutex, as the next
  bool encodes() const { return supplies_.feedback != nullptr; }

 private:
  enum Group : uint8_t { kDowns, kUps, kGroups };
  struct Slot {  // a lane, and what is on it
    Stager* stager = nullptr;
    std::unique_ptr<Lane> lane;
    bool waits = false;  // for users' streams: it takes the oldest
    // Under the mutex:
    Staging* staging = nullptr;
    bool issuing = false;  // the thread is at it
    bool again = false;    // it goes on on this lane
    bool ending = false;   // somebody hands it on
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
  mutable std::mutex mutex_;  // guards what follows; never held while the driver is called
  std::condition_variable changed_;
  std::vector<Staging*> queues_[kGroups];  // in no order
  std::vector<std::unique_ptr<UserWork>> starts_;
  std::vector<UserWork*> free_starts_, late_starts_;  // the latter, not known to have fired, in the order they began in
  uint64_t order_ = 0, uses_ = 0;
  bool ending_ = false, joined_ = false, stuck_ = false;
  Status broken_;
  Deadline broken_at_{};
  std::vector<Asked> asked_;  // the thread's, as what follows
  Deadline looked_{};
  std::thread thread_;
};

}  // namespace byteps_like
