// The stager's thread: which partition goes on which lane and when, and its next step when the device is through with
// it.
#include <algorithm>

#include "csrc/engine/staging/stager.h"

namespace byteps_like {
namespace {

constexpr auto kBetweenLooksAtLanes = std::chrono::milliseconds(200);
constexpr auto kBetweenAsking = std::chrono::milliseconds(1);  // whether a user's stream has come by

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
    if (broken_.ok()) AskStarts(lock);
    if (!broken_.ok() ? EndQueued(lock) : IssueNext(lock)) continue;
    if (!broken_.ok() && Busy()) {
      DrainBroken(lock);
    } else {
      Sleep(lock);
    }
  }
}

// The lock was held since there was nothing to do, but another thread may have joined before that.
void Stager::Sleep(Lock& lock) {
  if (joined_) return;
  if (AwaitsStarts()) {
    changed_.wait_for(lock, kBetweenAsking);
  } else if (Busy()) {
    changed_.wait_for(lock, kBetweenLooksAtLanes);
  } else {
    changed_.wait(lock);
  }
  if (!broken_.ok() || !Busy() || Clock::now() - looked_ < kBetweenLooksAtLanes) return;
  looked_ = Clock::now();
  Look(lock);
}

// Whether a lane is free for a partition that has begun and is not known to be ready.
bool Stager::AwaitsStarts() const {
  const auto& downs = slots_[kDowns];
  return broken_.ok() && !late_starts_.empty() && !queues_[kDowns].empty() &&
         std::ranges::any_of(downs, [](const auto& slot) { return !slot->waits && slot->staging == nullptr; });
}

void Stager::AskStarts(Lock& lock) {
  while (AwaitsStarts() && AskFirsts(lock)) {
  }
}

// Asks for the first of each thread and stream, since none of the others fires before it. Returns whether one has
// fired.
bool Stager::AskFirsts(Lock& lock) {
  asked_.clear();
  for (UserWork* const start : late_starts_) {
    const auto same = [&](const Asked& one) {
      return one.start->thread == start->thread && one.start->stream == start->stream;
    };
    if (std::ranges::none_of(asked_, same)) asked_.push_back({start, start->number, false});
  }
  Status status;
  lock.unlock();
  for (Asked& one : asked_) {
    auto done = one.start->event->Done();
    if (!done.ok()) status = done.status();
    one.fired = done.ok() && *done;
  }
  lock.lock();
  bool any = false;
  for (const Asked& one : asked_) {
    if (!one.fired || one.start->number != one.number) continue;  // it is in another use by now
    one.start->fired = any = true;
    std::erase(late_starts_, one.start);
  }
  if (!status.ok()) Break(status, lock);
  return any;
}

// The first that can go on, those nearest to their end first.
bool Stager::IssueNext(Lock& lock) {
  for (const Group group : {kUps, kDowns})
    for (const auto& slot : slots_[group]) {
      if (slot->again) {
        slot->again = false;
        slot->staging->stage = StagingStage::kFetch;
      } else if (slot->staging == nullptr) {
        slot->staging = Choose(group, slot->waits);
        if (slot->staging == nullptr) continue;
      } else {
        continue;
      }
      slot->told = false;
      Issue(*slot, lock);
      return true;
    }
  return false;
}

// nullptr: none can go on.
Staging* Stager::Choose(Group group, bool oldest) {
  auto& queue = queues_[group];
  const auto chosen = std::ranges::min_element(queue, [oldest](const Staging* a, const Staging* b) {
    if (!oldest && a->ready() != b->ready()) return a->ready();
    return oldest || a->part->priority == b->part->priority ? a->order < b->order
                                                            : a->part->priority > b->part->priority;
  });
  if (chosen == queue.end() || (!oldest && !(*chosen)->ready())) return nullptr;
  Staging* const staging = *chosen;
  *chosen = queue.back();
  queue.pop_back();
  return staging;
}

void Stager::Issue(Slot& slot, Lock& lock) {
  Staging& staging = *slot.staging;
  slot.issuing = true;
  slot.since = Clock::now();
  lock.unlock();
  Status status = slot.lane->Issue(staging);
  lock.lock();
  LetGo(staging);  // before it can be in another round
  lock.unlock();
  if (status.ok()) status = slot.lane->Then(Fired, &slot);
  lock.lock();
  slot.issuing = false;
  if (!status.ok() && !stuck_) Break(status, lock);
}

std::vector<Staging*> Stager::TakeQueued() {
  std::vector<Staging*> left;
  for (auto& queue : queues_) {
    for (Staging* const staging : queue) {
      LetGo(*staging);
      left.push_back(staging);
    }
    queue.clear();
  }
  return left;
}

// On a thread of the driver's, which must not call it.
void Stager::Fired(void* at) {
  Slot& slot = *static_cast<Slot*>(at);
  slot.stager->Finish(slot);
}

// Nothing drains until the slot is free, so engine and stager stay alive.
void Stager::Finish(Slot& slot) {
  Staging* staging = nullptr;
  Status status;
  {
    std::lock_guard lock(mutex_);
    staging = slot.staging;
    if (staging == nullptr || slot.ending) return;  // it was given up, or ended with the device
    slot.ending = true;
    status = staging->goes_up() ? broken_ : WhyNoMore();
  }
  const Status landed = slot.lane->Land(*staging, context_.standing().rank);
  if (status.ok() && !landed.ok()) sink_.Fail(landed.code(), landed.message());
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
  sink_.CameDown(*staging.part);
}

}  // namespace byteps_like
