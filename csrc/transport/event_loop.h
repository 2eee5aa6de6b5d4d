// One thread's epoll loop. Sleeps when there is nothing to do: no polling, no spinning (see docs/threads.md).
//
// Post and Stop may be called from any thread; everything else only on the loop's own thread, or before Run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "csrc/transport/stream.h"

namespace byteps_like {

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;

  void Run();   // until Stop
  void Stop();
  void Post(std::function<void()> task);  // run on the loop's thread, in order; wakes it

  // Calls `on_event` after every edge on fd. Unwatch may be called inside the callback: no call follows it.
  void Watch(int fd, std::function<void()> on_event);
  void Unwatch(int fd);

  uint64_t CallAt(Deadline when, std::function<void()> task);  // a one-shot timer; returns its id
  void CancelTimer(uint64_t id);

  bool on_loop_thread() const;

 private:
  struct Timer;  // the transport author owns this part
};

}  // namespace byteps_like
