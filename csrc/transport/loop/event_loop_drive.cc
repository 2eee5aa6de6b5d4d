// How threads that wait take the loop over from its own thread, and give it back.
#include <algorithm>
#include <chrono>

#include "csrc/base/thread.h"
#include "csrc/transport/loop/event_loop.h"

namespace byteps_like {
namespace {

constexpr auto kAfterDriver = std::chrono::milliseconds(1);  // the loop's own thread keeps away
constexpr auto kAlone = std::chrono::microseconds(5);        // then a spinning thread offers its core to others
constexpr auto kSpin = std::chrono::microseconds(200);       // the patience of a thread with a core to itself,
constexpr auto kYield = std::chrono::microseconds(50);       // and of one that gives way to others each time
constexpr int kMostShorter = 6;                              // halvings of its patience
constexpr int kFlushes = 4;                                  // iterations in which a driver finishes what it has begun

// In milliseconds; `work` -1: never.
int Sooner(int work, Clock::duration left) {
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  const auto most = static_cast<int>(std::clamp<int64_t>(limit, 0, 3'600'000));
  return work < 0 ? most : std::min(work, most);
}

}  // namespace

// Counts the caller among the waiting threads, if it can't drive. The driver looks at the count after it has left, so
// one of the two sees the other.
bool EventLoop::BeginDriving(bool wait) {
  if (wait) overlooked_.fetch_add(1);
  if (stopped_ || driving_.exchange(true)) return false;
  if (!wait && !baton_.try_lock()) {
    driving_ = false;
    return false;
  }
  if (wait) {
    overlooked_.fetch_sub(1);
    if (!driven_.exchange(true)) Wake();  // its own thread sleeps with the baton
    if (watching_) poller_->Nudge();
    baton_.lock();
  }
  thread_.store(ThisThread(), std::memory_order_relaxed);
  busy_at_ = Clock::now();
  return true;
}

bool EventLoop::Iterate() {
  if (!RunPosted()) {
    std::lock_guard lock(mutex_);
    stop_ = true;  // for the loop's own thread
    return false;
  }
  RunDeferred();
  RunTimers();
  return true;
}

// Polls while it is patient, and then sleeps, until there is an event, or at most until there is other work.
bool EventLoop::Await(Deadline deadline) {
  const int work = WaitMilliseconds();
  const Deadline now = Clock::now();
  const bool late = now >= deadline;
  const bool patient = (now - busy_at_).count() < patience_.load(std::memory_order_relaxed) >> in_vain_;
  const bool sleeps = work != 0 && !late && !patient;
  if (sleeps) in_vain_ = std::min(in_vain_ + 1, kMostShorter);
  const bool events = WaitForEvents(sleeps ? Sooner(work, deadline - now) : 0);
  BuryWatchers();
  if (events) OnBusy(sleeps ? Clock::now() : now);
  if (events || work == 0) return !late;
  // Even where there are cores enough, the one that is waited for may have been put on this one.
  if (patient && (!spin_.load(std::memory_order_relaxed) || now - busy_at_ > kAlone)) YieldCore();
  return !late;
}

void EventLoop::ShareCores(size_t threads) {
  const bool spin = threads <= CountCores();
  SetPatience(spin ? kSpin : kYield, spin);
}

// Where events are further apart than the patience of who runs the loop, as on a line that is busy with large messages,
// looking for them all that time costs others the core, and finds none: each such wait halves it, until they come
// closer again.
void EventLoop::OnBusy(Deadline now) {
  if ((now - busy_at_).count() < patience_.load(std::memory_order_relaxed)) in_vain_ = 0;
  busy_at_ = now;
}

bool EventLoop::HasWork() {
  std::lock_guard lock(mutex_);
  return !posted_.empty() || stop_;
}

// `waited`: it was not just for what a thread has posted. Many of those that follow one another don't keep the loop's
// own thread away, which overlaps the transfer with what they do in between.
void EventLoop::EndDriving(bool waited) {
  for (int i = 0; i < kFlushes && !deferred_.empty() && Iterate(); ++i) {
  }
  const bool unfinished = !deferred_.empty();
  thread_.store(nullptr, std::memory_order_relaxed);
  baton_.unlock();
  bool dozing;
  {
    std::lock_guard lock(away_mutex_);
    if (waited) last_driven_ = Clock::now();
    ++drives_;
    dozing = dozing_;
    driving_ = false;
  }
  if (unfinished || overlooked_ > 0 || HasWork()) {
    BringBack();
  } else if (dozing) {
    away_.notify_all();
  }
  if (watching_) poller_->Nudge();  // a timer may be due sooner than it knows
}

// Runs posted tasks on the caller's thread, if no other thread runs the loop right now.
void EventLoop::RunAtOnce() {
  if (BeginDriving(false)) {
    Iterate();
    EndDriving(false);
  } else {
    Wake();
    BringBack();
  }
}

void EventLoop::BringBack() {
  std::lock_guard lock(away_mutex_);
  needed_ = true;
  away_.notify_all();
}

// The loop's own thread, before it asks for the baton.
void EventLoop::KeepAway() {
  std::unique_lock lock(away_mutex_);
  keeping_away_ = true;
  while (!needed_ && !HasWork()) {
    if (driving_) {
      WhileDriven(lock);
      continue;
    }
    if (overlooked_ > 0 || Clock::now() >= last_driven_ + kAfterDriver) break;
    away_.wait_until(lock, last_driven_ + kAfterDriver);
  }
  needed_ = false;
  keeping_away_ = false;
}

// Short drives, of which many follow one another, don't tell this thread of their ends: that would cost each a wake-up.
void EventLoop::WhileDriven(std::unique_lock<std::mutex>& lock) {
  const uint64_t drive = drives_;
  away_.wait_for(lock, kAfterDriver);
  if (needed_ || !driving_ || drives_ != drive) return;
  dozing_ = true;
  away_.wait(lock);
  dozing_ = false;
}

// The loop's own thread, when it has nothing to do and holds no baton: sleeps until there are events, a timer is due,
// or a driver comes. Takes no events.
bool EventLoop::SleepWatching() {
  int milliseconds;
  {
    std::unique_lock baton(baton_, std::try_to_lock);
    if (!baton.owns_lock()) return true;  // a driver has come
    milliseconds = WaitMilliseconds();
  }
  if (milliseconds == 0) return false;
  watching_ = true;
  if (!driving_) poller_->Look(milliseconds);
  watching_ = false;
  return true;
}

}  // namespace byteps_like
