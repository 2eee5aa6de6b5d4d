// The stager when the device fails, or says nothing.
#include <algorithm>
#include <chrono>
#include <string>

#include "csrc/base/log.h"
#include "csrc/engine/staging/stager.h"

namespace byteps_like {
namespace {

constexpr auto kBetweenLooksAtBrokenStreams = std::chrono::milliseconds(1);  // no host function may come

}  // namespace

void Stager::Look(Lock& lock) {
  const auto warn_after = std::chrono::duration<double>(context_.options.stall_warning);
  for (const auto& group : slots_)
    for (const auto& slot : group) {
      if (slot->staging == nullptr) continue;
      if (warn_after.count() > 0 && Clock::now() - slot->since > warn_after && !std::exchange(slot->told, true))
        Log(LogLevel::kWarning,
            "rank " + std::to_string(context_.standing().rank) + ": GPU " + std::to_string(gpu().info().ordinal) +
                " has not got to key " + std::to_string(slot->staging->part->key) +
                " yet: what the program has queued before it is not over. Where that waits for this operation by a "
                "queue that they share, CUDA_DEVICE_MAX_CONNECTIONS=32 parts them (docs/how-to/gpu.md)");
      lock.unlock();
      const auto done = slot->lane->stream().Done();
      lock.lock();
      if (!done.ok()) return Break(done.status(), lock);
    }
}

bool Stager::Watch() {
  const auto warn_after = std::chrono::duration<double>(context_.options.stall_warning);
  std::string told;
  bool busy = false;
  {
    std::lock_guard lock(mutex_);
    busy = Busy() || std::ranges::any_of(queues_, [](const auto& queue) { return !queue.empty(); });
    for (const auto& group : slots_)
      for (const auto& slot : group)
        if (slot->issuing && slot->staging != nullptr && Clock::now() - slot->since > warn_after &&
            !std::exchange(slot->told, true))
          told = "rank " + std::to_string(context_.standing().rank) + " waits for the driver of GPU " +
                 std::to_string(gpu().info().ordinal) + ", which has not queued key " +
                 std::to_string(slot->staging->part->key) +
                 " yet: does another thread free memory of the device, or unlock memory of the host, while streams wait"
                 " for the network? (docs/how-to/gpu.md)";
  }
  if (!told.empty()) context_.options.on_event(Code::kStalled, told, false);
  return busy;
}

void Stager::Break(const Status& status, Lock& lock) {
  if (!broken_.ok()) return;
  broken_ = Status(status.code(), "rank " + std::to_string(context_.standing().rank) + ": " + status.message());
  broken_at_ = Clock::now();
  const Status why = broken_;
  lock.unlock();
  sink_.Fail(why.code(), why.message());
  lock.lock();
  (void)EndQueued(lock);
}

// Also partitions that Submit had begun before it knew of the failure.
bool Stager::EndQueued(Lock& lock) {
  const std::vector<Staging*> left = TakeQueued();
  if (left.empty()) return false;  // without having let go of the lock
  lock.unlock();
  for (Staging* const staging : left) End(*staging->part, broken_);
  lock.lock();
  return true;
}

// Each ends with its stream, which may be waiting for another's operation to end.
void Stager::DrainBroken(Lock& lock) {
  for (const auto& group : slots_)
    for (const auto& slot : group) {
      if (slot->staging == nullptr || slot->ending) continue;
      lock.unlock();
      const bool over = slot->lane->stream().Over();
      lock.lock();
      Staging* const staging = slot->staging;
      if (!over || staging == nullptr || slot->ending) continue;
      slot->ending = true;
      lock.unlock();
      End(*staging->part, broken_);
      lock.lock();
      Free(*slot);
    }
  if (Busy() && Clock::now() - broken_at_ > longest_drain_) GiveUp(broken_, lock);
  if (Busy()) changed_.wait_for(lock, kBetweenLooksAtBrokenStreams);
}

void Stager::Drain() {
  {
    Lock lock(mutex_);
    if (joined_) return;
    const Status silent(Code::kDevice, "rank " + std::to_string(context_.standing().rank) + ": GPU " +
                                           std::to_string(gpu().info().ordinal) +
                                           " has not ended its copies since the shutdown: does a kernel hang?");
    if (!changed_.wait_for(lock, longest_drain_, [this] { return !Busy(); })) GiveUp(silent, lock);
    joined_ = true;
    changed_.notify_all();
    // Host functions that were under way: they use the engine.
    changed_.wait(lock, [this] { return !Any([](const Slot& slot) { return slot.ending; }); });
    if (stuck_ && Any([](const Slot& slot) { return slot.issuing; }))
      thread_.detach();  // in a call that doesn't return
  }
  if (thread_.joinable()) thread_.join();
}

void Stager::GiveUp(const Status& why, Lock& lock) {
  stuck_ = true;
  const Status told(why.code(), why.message() +
                                    "; the device may still be writing to this tensor and its mirror: don't use their "
                                    "memory again, end the process");
  Log(LogLevel::kError, told.message());
  std::vector<Staging*> left;
  for (const auto& group : slots_)
    for (const auto& slot : group)
      if (slot->staging != nullptr && !slot->ending) left.push_back(std::exchange(slot->staging, nullptr));
  lock.unlock();
  for (Staging* const staging : left) End(*staging->part, told);
  lock.lock();
  changed_.notify_all();
}

}  // namespace byteps_like
