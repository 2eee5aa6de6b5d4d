// One thread's event loop. Sleeps when there is nothing to do, after some patience (docs/explanation/threads.md).
//
// A thread that waits for something the loop is to do may drive it meanwhile: it takes the loop over from the loop's
// own thread, which keeps away for a millisecond after the last driver. So a sequence of short blocking calls pays
// neither for handing over to the loop's thread nor for a wake-up.
//
// Post, PostOrRun, Stop, Drive, Nudge, SetPatience and ShareCores may be called from any thread; everything else only
// on the loop's thread (the driver, while one drives), or before Run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/transport/loop/poller.h"
#include "csrc/transport/loop/timers.h"
#include "csrc/transport/stream.h"

namespace byteps_like {

class EventLoop {
 public:
  // Something that wants to run again once the events at hand are done, without an allocation. The loop must outlive
  // it, or it must have been forgotten.
  class Deferred {
   public:
    virtual void RunDeferred() = 0;

   protected:
    ~Deferred() = default;

   private:
    friend class EventLoop;
    bool queued_ = false;
  };

  EventLoop() : EventLoop(Poller::Make()) {}
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;

  // kCapacity: the process has no descriptors left for it. No other method may be called then.
  const Status& made() const { return made_; }

  void Run();  // until Stop; tasks posted before Stop still run
  void Stop();
  void Post(std::function<void()> task);  // run on the loop's thread, in order; wakes it
  // The same, but if the loop's thread keeps away, runs it here and now, which saves a wake-up. Only for callers that
  // hold no lock and that the loop never waits for.
  void PostOrRun(std::function<void()> task);

  // Runs the loop on the caller's thread until `until()` or the deadline: true for the former. Where it can't (on the
  // loop's thread, while another thread drives, after Stop), it returns `elsewhere()`, in which the caller waits by
  // other means while another thread runs the loop.
  template <typename Until, typename Elsewhere>
  bool Drive(Until&& until, Deadline deadline, Elsewhere&& elsewhere) {
    if (on_loop_thread()) return elsewhere();
    if (!BeginDriving(true)) {
      const bool reached = elsewhere();
      overlooked_.fetch_sub(1);
      return reached;
    }
    bool reached = false;
    while (Iterate() && !(reached = until()) && Await(deadline) && !(reached = until())) {
    }
    EndDriving(true);
    return reached || until();
  }
  // A driver may wait for something that the calling thread has just done, by atomics that are sequentially consistent:
  // it looks again.
  void Nudge() {
    if (driving_ && !on_loop_thread()) Wake();
  }
  // How long who runs the loop polls for events, since the last one, before it sleeps: a driver, or the loop's own
  // thread while there never was one. It spins only while no other thread needs the core. At first not at all. Any
  // thread.
  void SetPatience(Clock::duration patience, bool spin) {
    patience_.store(patience.count(), std::memory_order_relaxed);
    spin_.store(spin, std::memory_order_relaxed);
  }

  // The patience of one of so many threads on this host that wait for one another.
  void ShareCores(size_t threads);

  // Calls `on_event` after every edge on fd. Unwatch may be called inside the callback: no call follows it. kCapacity
  // if the kernel can watch no more (fs.epoll.max_user_watches, memory): then nothing is watched.
  Status Watch(int fd, std::function<void()> on_event);
  void Unwatch(int fd);

  uint64_t CallAt(Deadline when, std::function<void()> task);  // a one-shot timer; returns its id, never 0
  void CancelTimer(uint64_t id);                               // does nothing if it has run

  // Runs `deferred` once, after the events at hand and before the loop sleeps; again only after another Defer.
  void Defer(Deferred& deferred);
  void Forget(Deferred& deferred);  // it won't run; always before its end

  bool on_loop_thread() const { return thread_.load(std::memory_order_relaxed) == ThisThread(); }

 private:
  explicit EventLoop(Result<std::unique_ptr<Poller>> poller);
  struct Watcher {
    int fd;
    uint32_t slot;
    std::function<void()> on_event;
  };
  struct Slot {  // an event names slot and generation, so one for a watcher that has gone is recognised
    uint32_t generation = 0;
    std::unique_ptr<Watcher> watcher;
  };
  bool Append(std::function<void()> task);
  void Wake() { poller_->Wake(); }
  // The parts of an iteration; called by the thread that holds baton_.
  bool RunPosted();  // false: stop
  void RunDeferred();
  void RunTimers();
  bool WaitForEvents(int milliseconds);  // false: none came
  int WaitMilliseconds();
  void BuryWatchers();

  // Driving.
  bool BeginDriving(bool wait);
  bool Iterate();                 // false: the loop is to stop
  bool Await(Deadline deadline);  // false: the deadline has passed
  void OnBusy(Deadline now);
  void EndDriving(bool waited);
  bool HasWork();
  void KeepAway();
  void WhileDriven(std::unique_lock<std::mutex>& lock);
  bool SleepWatching();  // false: there is something to do now
  void BringBack();
  void RunAtOnce();

  // The thread that runs iterations holds the baton. Once there has been a driver, the loop's own thread gives it up
  // while it sleeps, and watches for events without taking events from it.
  Mutex baton_;
  std::atomic<bool> driven_{false};        // there was a driver, ever
  std::atomic<bool> driving_{false};       // there is one
  std::atomic<int> overlooked_{0};         // threads that wait without driving: the loop's own thread is needed
  std::atomic<bool> watching_{false};      // the loop's own thread sleeps in SleepWatching
  std::atomic<bool> keeping_away_{false};  // it sleeps in KeepAway
  std::atomic<bool> stopped_{false};
  std::mutex away_mutex_;
  ConditionVariable away_;
  bool needed_ = false;     // guarded by away_mutex_: it is to come back
  Deadline last_driven_{};  // likewise, as the next two
  uint64_t drives_ = 0;     // that have ended
  bool dozing_ = false;     // it sleeps until it is told that this drive has ended
  Deadline busy_at_{};      // of the holder of the baton: when there was an event last
  int in_vain_ = 0;         // likewise: how often its patience is halved
  std::atomic<int64_t> patience_{0};
  std::atomic<bool> spin_{false};

  const std::unique_ptr<Poller> poller_;
  const Status made_;
  std::atomic<const void*> thread_{nullptr};

  std::mutex mutex_;  // guards posted_ and stop_
  std::vector<std::function<void()>> posted_;
  bool stop_ = false;

  std::vector<std::function<void()>> running_;  // swapped with posted_, so that neither allocates in the long run
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::unordered_map<int, uint32_t> slot_of_fd_;
  std::vector<std::unique_ptr<Watcher>> gone_;  // unwatched, kept until no callback of theirs can be on the stack
  std::vector<Deferred*> deferred_, deferred_running_;
  Timers timers_;
};

}  // namespace byteps_like
