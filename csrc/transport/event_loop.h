// One thread's epoll loop. Sleeps when there is nothing to do: no polling, no spinning (see docs/threads.md).
//
// Post and Stop may be called from any thread; everything else only on the loop's own thread, or before Run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "csrc/base/fd.h"
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

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;

  void Run();  // until Stop; what was posted before Stop still runs
  void Stop();
  void Post(std::function<void()> task);  // run on the loop's thread, in order; wakes it

  // Calls `on_event` after every edge on fd. Unwatch may be called inside the callback: no call follows it.
  void Watch(int fd, std::function<void()> on_event);
  void Unwatch(int fd);

  uint64_t CallAt(Deadline when, std::function<void()> task);  // a one-shot timer; returns its id, never 0
  void CancelTimer(uint64_t id);                               // does nothing if it has run

  // Runs `deferred` once, after the events at hand and before the loop sleeps; again only after another Defer.
  void Defer(Deferred& deferred);
  void Forget(Deferred& deferred);  // it won't run; always before its end

  bool on_loop_thread() const { return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

 private:
  struct Watcher {
    int fd;
    uint32_t slot;
    std::function<void()> on_event;
  };
  struct Slot {  // an event names slot and generation, so one for a watcher that has gone is recognised
    uint32_t generation = 0;
    std::unique_ptr<Watcher> watcher;
  };
  struct Timer {
    Deadline when;
    uint64_t id;
    std::function<void()> task;
  };

  void Wake();
  bool RunPosted();  // false: stop
  void RunDeferred();
  void RunTimers();
  void WaitForEvents();
  int WaitMilliseconds();
  void BuryWatchers();

  Fd epoll_;
  Fd wake_;
  std::atomic<std::thread::id> thread_{};

  std::mutex mutex_;  // guards posted_ and stop_
  std::vector<std::function<void()>> posted_;
  bool stop_ = false;

  std::vector<std::function<void()>> running_;  // swapped with posted_, so that neither allocates in the long run
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::unordered_map<int, uint32_t> slot_of_fd_;
  std::vector<std::unique_ptr<Watcher>> gone_;  // unwatched, kept until no callback of theirs can be on the stack
  std::vector<Deferred*> deferred_, deferred_running_;
  std::vector<Timer> timers_;  // a heap, soonest first
  uint64_t last_timer_ = 0;
};

}  // namespace byteps_like
