// One process's end of the shared memory of its host: which ranks are present, which are gone, how to wake others and
// be woken; and the thread that advances calls that no thread waits for. Private to collectives/host_*.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "collectives/host/host_layout.h"
#include "collectives/host/host_wait.h"
#include "csrc/base/fd.h"
#include "csrc/base/thread.h"

namespace byteps_like {

class LocalHostGroup;

inline constexpr auto kLookAtProcesses = std::chrono::milliseconds(100);  // how often one asks whether they live

class LocalArea : public std::enable_shared_from_this<LocalArea> {
 public:
  explicit LocalArea(HostOptions options);

  const HostLayout& layout() const { return layout_; }
  uint32_t index() const { return options_.index; }
  uint32_t ranks() const { return static_cast<uint32_t>(options_.names.size()); }
  const std::string& name(uint32_t rank) const { return options_.names[rank]; }
  RegionResolver* regions() const { return options_.regions.get(); }
  bool closed() const { return stop_.load(); }
  bool may_spin() const { return may_spin_; }

  Result<std::shared_ptr<LocalHostGroup>> Group(uint64_t lane, std::vector<uint32_t> members);
  void Release(uint32_t slot, uint32_t member, uint32_t members);

  // Number of losses said so far: look at LossOf again when it has changed.
  uint32_t losses() const { return layout_.header().losses.load(); }
  Status LossOf(uint32_t rank);
  void Fail(uint32_t rank, const Status& why);
  void CancelLane(uint64_t lane, const Status& why);
  void CheckLives(std::span<const uint32_t> ranks);  // a look at the processes themselves

  void Ring(uint32_t rank);  // wakes the threads that sleep there
  // Sleeps until the bell rings or `deadline`, unless `ready` finds something first.
  template <typename Ready>
  void Sleep(Deadline deadline, const Ready& ready);

  // The group has calls that perhaps no thread waits for. kClosed after Close; kCapacity if there is no thread to make
  // them.
  Status Adopt(std::shared_ptr<LocalHostGroup> group);
  void Nudge();  // the thread has something to do
  void Close(const Status& reason);

 private:
  Result<uint32_t> SlotFor(uint64_t lane, uint64_t members);
  Status Lock();  // kTimeout: a rank keeps it; kCorrupt: no rank has it
  void Unlock() { layout_.header().lock.store(0); }
  bool Died(uint32_t rank);
  void ReachFor(uint32_t rank);  // once
  void Progress();
  bool DriveAdopted(bool look_at_time);
  Deadline NextLook(Deadline now);
  void CheckAdopted();
  bool HasWork();
  void Rest();

  const HostOptions options_;
  const HostLayout layout_;
  const bool may_spin_;
  std::mutex mutex_;
  std::mutex groups_mutex_;  // taken before mutex_
  std::map<uint64_t, std::weak_ptr<LocalHostGroup>> groups_;
  std::vector<Status> lost_;
  std::vector<Fd> processes_;
  std::vector<bool> reached_for_;  // ranks that had not come when they were waited for
  std::vector<std::shared_ptr<LocalHostGroup>> adopted_;
  Thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> nudges_{0}, resting_{0};  // of the thread, while there is nothing that others could end
};

template <typename Ready>
void LocalArea::Sleep(Deadline deadline, const Ready& ready) {
  HostCell& cell = layout_.cell(index());
  // A sleeper announces itself first and then looks again, so a write after that look sees the sleeper (all
  // sequentially consistent).
  cell.sleepers.fetch_add(1);
  const uint32_t bell = cell.bell.load();
  if (!ready()) SleepOn(cell.bell, bell, deadline);
  cell.sleepers.fetch_sub(1);
}

}  // namespace byteps_like
