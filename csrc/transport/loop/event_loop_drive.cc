// How threads that wait take the loop over from its own thread, and give it back.
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "csrc/transport/loop/event_loop.h"

namespace byteps_like {
namespace {

constexpr auto kAfterDriver = std::chrono::milliseconds(1);  // the loop's own thread keeps away
constexpr auto kWhileDriven = std::chrono::milliseconds(5);  // and looks this often, unless the driver sleeps
constexpr auto kAlone = std::chrono::microseconds(5);        // then a spinning driver offers its core to others
constexpr int kMostShorter = 6;                              // halvings of a driver's patience
constexpr int kFlushes = 4;                                  // iterations in which a driver finishes what it has begun

void Ring(const Fd& fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd.get(), &one, sizeof(one));
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
    if (watching_) Ring(nudge_);
    baton_.lock();
  }
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
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

bool EventLoop::Await(Deadline deadline) {
  const int sleep = WaitMilliseconds();
  const bool events = WaitForEvents(0);
  BuryWatchers();
  if (sleep == 0 && !events) return true;
  const Deadline now = Clock::now();
  if (events) {
    OnBusy(now);
    return true;
  }
  if (now >= deadline) return false;
  if ((now - busy_at_).count() < patience_.load(std::memory_order_relaxed) >> in_vain_) {
    // Even where there are cores enough, the one that is waited for may have been put on this one.
    if (!spin_.load(std::memory_order_relaxed) || now - busy_at_ > kAlone) ::sched_yield();
    return true;
  }
  driver_slept_ = true;
  in_vain_ = std::min(in_vain_ + 1, kMostShorter);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  const auto most = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
  if (WaitForEvents(sleep < 0 ? most : std::min(sleep, most))) OnBusy(Clock::now());
  BuryWatchers();
  return true;
}

// Where events are further apart than a driver's patience, as on a line that is busy with large messages, looking for
// them all that time costs others the core, and finds none: each such wait halves it, until they come closer again.
void EventLoop::OnBusy(Deadline now) {
  if ((now - busy_at_).count() < patience_.load(std::memory_order_relaxed)) in_vain_ = 0;
  busy_at_ = now;
}

bool EventLoop::HasWork() {
  std::lock_guard lock(mutex_);
  return !posted_.empty() || stop_;
}

void EventLoop::EndDriving() {
  for (int i = 0; i < kFlushes && !deferred_.empty() && Iterate(); ++i) {
  }
  const bool unfinished = !deferred_.empty();
  thread_.store(std::thread::id(), std::memory_order_relaxed);
  baton_.unlock();
  const bool slept = driver_slept_.exchange(false);
  {
    std::lock_guard lock(away_mutex_);
    last_driven_ = Clock::now();
    driving_ = false;
  }
  if (unfinished || overlooked_ > 0 || HasWork()) {
    BringBack();
  } else if (slept) {
    away_.notify_all();  // it may sleep without a deadline
  }
  if (watching_) Ring(nudge_);  // a timer may be due sooner than it knows
}

// Runs posted tasks on the caller's thread, if no other thread runs the loop right now.
void EventLoop::RunAtOnce() {
  if (BeginDriving(false)) {
    Iterate();
    EndDriving();
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
      if (driver_slept_) {
        away_.wait(lock);
      } else {
        away_.wait_for(lock, kWhileDriven);
      }
      continue;
    }
    if (overlooked_ > 0 || Clock::now() >= last_driven_ + kAfterDriver) break;
    away_.wait_until(lock, last_driven_ + kAfterDriver);
  }
  needed_ = false;
  keeping_away_ = false;
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
  if (!driving_) {
    pollfd fds[] = {{epoll_.get(), POLLIN, 0}, {nudge_.get(), POLLIN, 0}};
    ::poll(fds, 2, milliseconds);
    uint64_t count;
    [[maybe_unused]] const ssize_t taken = ::read(nudge_.get(), &count, sizeof(count));
  }
  watching_ = false;
  return true;
}

}  // namespace byteps_like
