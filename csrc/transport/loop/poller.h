// What an event loop sleeps on: it tells of edges on descriptors, and is woken by other threads. Of the kernel (epoll),
// or simulated (simulated_poller.h), as the thread is on which it is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "csrc/base/status.h"

namespace byteps_like {

class Poller {
 public:
  // kCapacity: the process has no descriptors left for it.
  static Result<std::unique_ptr<Poller>> Make();
  virtual ~Poller() = default;

  // Tells of an edge on `fd`, either way, by `tag`, and of what is there already. kCapacity if the kernel can watch no
  // more (fs.epoll.max_user_watches, memory).
  virtual Status Watch(int fd, uint64_t tag) = 0;
  virtual void Unwatch(int fd) = 0;  // it may be closed already
  // Waits until there are events, or so long (-1: for ever). Their tags, as many as fit; kWoken is one of Wake.
  virtual size_t Wait(std::span<uint64_t> tags, int milliseconds) = 0;
  // The same, but takes no events; Nudge ends it, too. The only one that may run beside Wait.
  virtual void Look(int milliseconds) = 0;
  virtual void Wake() = 0;   // any thread
  virtual void Nudge() = 0;  // any thread

  static constexpr uint64_t kWoken = ~0ull;
  static constexpr size_t kMostAtOnce = 64;  // that Wait tells of
};

}  // namespace byteps_like
