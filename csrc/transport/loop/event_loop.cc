#include "csrc/transport/loop/event_loop.h"

#include <algorithm>
#include <array>
#include <utility>

namespace byteps_like {
EventLoop::EventLoop(Result<std::unique_ptr<Poller>> poller)
    : poller_(poller.ok() ? std::move(*poller) : nullptr), made_(poller.status()) {}

EventLoop::~EventLoop() = default;

void EventLoop::Run() {
  stopped_ = false;
  for (bool going = true, idle = true; going;) {
    if (driven_ && (idle || driving_)) KeepAway();
    {
      std::lock_guard baton(baton_);
      thread_.store(ThisThread(), std::memory_order_relaxed);
      going = RunPosted();
      if (going) {
        RunDeferred();
        RunTimers();
        if (driven_) {
          WaitForEvents(0);
          BuryWatchers();
        } else {
          Await(Deadline::max());
        }
      }
      thread_.store(nullptr, std::memory_order_relaxed);
    }
    idle = going && driven_ && SleepWatching();
  }
  stopped_ = true;
}

void EventLoop::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  Wake();
  BringBack();
}

// True if a thread must be woken for it. The loop looks at its mailbox before it sleeps, so its own thread needs no
// wake-up, and one is enough for many.
bool EventLoop::Append(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  const bool first = posted_.empty();
  posted_.push_back(std::move(task));
  return first && !on_loop_thread();
}

void EventLoop::Post(std::function<void()> task) {
  if (!Append(std::move(task))) return;
  Wake();
  if (keeping_away_ && !driving_) BringBack();
}

void EventLoop::PostOrRun(std::function<void()> task) {
  if (!Append(std::move(task))) return;
  if (keeping_away_ && !driving_) return RunAtOnce();
  Wake();
}

bool EventLoop::RunPosted() {
  bool stop;
  {
    std::lock_guard lock(mutex_);
    running_.swap(posted_);
    stop = std::exchange(stop_, false);
  }
  for (auto& task : running_) {
    task();
    task = nullptr;  // objects that it holds are destroyed before the next one runs
  }
  running_.clear();
  return !stop;
}

Status EventLoop::Watch(int fd, std::function<void()> on_event) {
  Unwatch(fd);
  const uint32_t slot = free_slots_.empty() ? static_cast<uint32_t>(slots_.size()) : free_slots_.back();
  const uint32_t generation = free_slots_.empty() ? 0 : slots_[slot].generation;
  const uint64_t tag = (static_cast<uint64_t>(generation) << 32) | slot;
  if (Status watched = poller_->Watch(fd, tag); !watched.ok()) return watched;
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    free_slots_.pop_back();
  }
  slots_[slot].watcher = std::make_unique<Watcher>(Watcher{fd, slot, std::move(on_event)});
  slot_of_fd_[fd] = slot;
  return {};
}

void EventLoop::Unwatch(int fd) {
  const auto found = slot_of_fd_.find(fd);
  if (found == slot_of_fd_.end()) return;
  const uint32_t slot = found->second;
  slot_of_fd_.erase(found);
  poller_->Unwatch(fd);
  gone_.push_back(std::move(slots_[slot].watcher));
  ++slots_[slot].generation;
  free_slots_.push_back(slot);
}

// Objects that a callback held may themselves unwatch something when they are destroyed.
void EventLoop::BuryWatchers() {
  if (gone_.empty()) return;
  std::vector<std::unique_ptr<Watcher>> gone;
  gone.swap(gone_);
}

uint64_t EventLoop::CallAt(Deadline when, std::function<void()> task) { return timers_.Add(when, std::move(task)); }

void EventLoop::CancelTimer(uint64_t id) { timers_.Cancel(id); }

void EventLoop::RunTimers() {
  if (timers_.empty()) return;
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.soonest() <= now) timers_.TakeSoonest()();
}

void EventLoop::Defer(Deferred& deferred) {
  if (std::exchange(deferred.queued_, true)) return;
  deferred_.push_back(&deferred);
}

void EventLoop::Forget(Deferred& deferred) {
  if (!std::exchange(deferred.queued_, false)) return;
  // Whichever list has it keeps an empty place: the list may be walked right now.
  std::replace(deferred_.begin(), deferred_.end(), &deferred, static_cast<Deferred*>(nullptr));
  std::replace(deferred_running_.begin(), deferred_running_.end(), &deferred, static_cast<Deferred*>(nullptr));
}

void EventLoop::RunDeferred() {
  deferred_running_.swap(deferred_);
  for (size_t i = 0; i < deferred_running_.size(); ++i) {
    Deferred* deferred = std::exchange(deferred_running_[i], nullptr);
    if (deferred == nullptr) continue;
    deferred->queued_ = false;
    deferred->RunDeferred();
  }
  deferred_running_.clear();
}

int EventLoop::WaitMilliseconds() {
  if (!deferred_.empty()) return 0;
  {
    std::lock_guard lock(mutex_);
    if (!posted_.empty() || stop_) return 0;
  }
  if (timers_.empty()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.soonest() - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

bool EventLoop::WaitForEvents(int milliseconds) {
  std::array<uint64_t, Poller::kMostAtOnce> tags;
  const size_t count = poller_->Wait(tags, milliseconds);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t tag = tags[i];
    if (tag == Poller::kWoken) continue;
    const Slot& slot = slots_[static_cast<uint32_t>(tag)];
    if (slot.generation != static_cast<uint32_t>(tag >> 32) || slot.watcher == nullptr) continue;
    Watcher& watcher = *slot.watcher;  // stays where it is if the callback unwatches it or slots_ grows
    watcher.on_event();
  }
  return count > 0;
}

}  // namespace byteps_like
