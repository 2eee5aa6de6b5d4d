// How many of our bytes may lie in the kernel for one TCP connection.
#pragma once

namespace byteps_like {

class TcpQueue {
 public:
  explicit TcpQueue(int fd);  // two segments unsent at most, what is under way is left to the kernel

  // True: where the path is slow and near, unsent and unacknowledged bytes together are held to what it carries in a
  // fraction of a millisecond, so that what comes next, on any connection that shares the way, waits no longer. Asks
  // the kernel for the rate, so a call from time to time keeps it right. Returns whether it is held so.
  bool KeepShort(bool on);

 private:
  const int fd_;
  int window_ = 0;  // 0: not held
};

}  // namespace byteps_like
