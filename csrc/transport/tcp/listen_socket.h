// A listening socket whose Accept has a deadline and can be ended from another thread. tcp and shm are built on it.
#pragma once

#include <atomic>

#include "csrc/base/fd.h"
#include "csrc/transport/stream.h"

namespace byteps_like {

class ListenSocket {
 public:
  // Takes a non-blocking socket that listens; `url` is for messages.
  static Result<std::unique_ptr<ListenSocket>> Make(Fd socket, std::string url);

  // The next connection, non-blocking. kTimeout, kClosed after Close, kSystem.
  Result<Fd> Accept(Deadline deadline);
  void Close();  // any thread; new peers are refused from here on
  const std::string& url() const { return url_; }

 private:
  ListenSocket(Fd socket, Fd stop, std::string url)
      : socket_(std::move(socket)), stop_(std::move(stop)), url_(std::move(url)) {}

  const Fd socket_;
  const Fd stop_;  // an eventfd that turns readable for ever
  const std::string url_;
  std::atomic<bool> closed_{false};
};

// Waits until `fd` has one of `events` (poll's) or the deadline passes; false then. Retries when interrupted.
Result<bool> PollUntil(int fd, short events, Deadline deadline);

}  // namespace byteps_like
