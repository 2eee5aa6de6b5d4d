// The stager's thread: what goes on which lane when; and what becomes of it when the device is through with it.
#include <algorithm>

#include "csrc/engine/engine.h"
#include "csrc/engine/stager.h"

namespace byteps_like {
namespace {

constexpr auto kLookAfter = std::chrono::milliseconds(200);  // without a host function, while lanes are busy

Status Stopped() { return Status(Code::kClosed, "this rank was shut down while the operation was in flight"); }

}  // namespace

bool Stager::Any(bool (*is)(const Slot&)) const {
  for (const auto& group : slots_)
    for (const auto& slot : group)
      if (is(*slot)) return true;
  return false;
}

bool Stager::Busy() const {
  return Any([](const Slot& slot) { return slot.staging != nullptr; });
}

void Stager::Free(Slot& slot) {
  slot.staging = nullptr;
  slot.again = slot.ending = false;
  changed_.notify_all();
}

void Stager::Work() {
  const CurrentContext current(gpu());
  Lock lock(mutex_);
  if (!current.status().ok()) Break(current.status(), lock);
  while (!joined_ || (Busy() && !stuck_)) {
    if (!broken_.ok() && EndQueued(lock)) continue;
    if (!broken_.ok() && Busy()) {
      DrainBroken(lock);
    } else if (broken_.ok() && IssueNext(lock)) {
      continue;
    } else if (!Busy()) {
      changed_.wait(lock);
    } else if (changed_.wait_for(lock, kLookAfter) == std::cv_status::timeout) {
      Look(lock);
    }
  }
}

// The first that can go on, those nearest to their end first.
bool Stager::IssueNext(Lock& lock) {
  for (const Group group : {kUps, kEncodes, kDowns})
    for (const auto& slot : slots_[group]) {
      if (slot->again) {
        slot->again = slot->told = false;
        slot->staging->stage = StagingStage::kFetch;
      } else if (slot->staging == nullptr && !queues_[group].empty()) {
        slot->told = false;
        slot->staging = Choose(group, slot->oldest_first).staging;
      } else {
        continue;
      }
      Issue(*slot, lock);
      return true;
    }
  return false;
}

Stager::Task Stager::Choose(Group group, bool oldest) {
  auto& queue = queues_[group];
  const auto chosen = std::min_element(queue.begin(), queue.end(), [oldest](const Task& a, const Task& b) {
    return oldest || a.priority == b.priority ? a.order < b.order : a.priority > b.priority;
  });
  const Task task = *chosen;
  *chosen = queue.back();
  queue.pop_back();
  return task;
}

void Stager::Issue(Slot& slot, Lock& lock) {
  Staging& staging = *slot.staging;
  UserWork* const start = staging.start;  // it may be in another round when we are through
  slot.issuing = true;
  slot.since = Clock::now();
  lock.unlock();
  Status status = slot.lane->Issue(staging);
  if (start != nullptr) staging.start = nullptr;
  if (status.ok()) status = slot.lane->Then(Fired, &slot);
  lock.lock();
  slot.issuing = false;
  if (start != nullptr && --start->waiting == 0) free_starts_.push_back(start);
  if (!status.ok() && !stuck_) Break(status, lock);
}

std::vector<Staging*> Stager::TakeQueued() {
  std::vector<Staging*> left;
  for (auto& queue : queues_) {
    for (const Task& task : queue) left.push_back(task.staging);
    queue.clear();
  }
  return left;
}

// On a thread of the driver's, which must not call it.
void Stager::Fired(void* at) {
  Slot& slot = *static_cast<Slot*>(at);
  slot.stager->Finish(slot);
}

// Until the slot is free, nobody drains, so that engine and stager stay.
void Stager::Finish(Slot& slot) {
  Staging* staging = nullptr;
  Status status;
  {
    std::lock_guard lock(mutex_);
    staging = slot.staging;
    if (staging == nullptr || slot.ending) return;  // it was given up, or ended with the device
    slot.ending = true;
    status = broken_;
    if (status.ok() && ending_ && !staging->goes_up()) status = Stopped();
  }
  const Status landed = slot.lane->Land(*staging, engine_.rank());
  if (status.ok() && !landed.ok()) engine_.Fail(landed.code(), landed.message());
  if (status.ok()) status = landed;
  const bool again = status.ok() && slot.lane->Asks(*staging);
  if (!again) HandOn(*staging, status);
  std::lock_guard lock(mutex_);
  if (!again) return Free(slot);
  slot.again = true;
  slot.ending = false;
  changed_.notify_all();
}

void Stager::HandOn(Staging& staging, const Status& status) {
  if (!status.ok() || staging.goes_up()) return End(*staging.part, status);
  engine_.CameDown(*staging.part);
}

}  // namespace byteps_like
