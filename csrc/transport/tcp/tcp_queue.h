// How many of our bytes may lie in the kernel, and in the queue before a line, for one TCP connection.
#pragma once

#include <cstdint>

#include "csrc/transport/stream.h"

namespace byteps_like {

class TcpQueue {
 public:
  explicit TcpQueue(int fd);  // kDefaultKernelQueue unsent at most; bytes under way are left to the kernel

  void Limit(uint32_t unsent_bytes);  // Stream::LimitQueue

  // True: the connection is paced below the rate of its path, so that the queue before the narrowest line stays empty
  // for other connections, and fewer bytes lie unsent. The rate is the one at which bytes passed while that queue
  // stood, so call this about every 20 ms. Returns whether the connection is paced now: not if no queue was seen, and
  // not if the rate is too high to matter.
  bool KeepShort(bool on);

 private:
  void Measure();

  const int fd_;
  uint32_t unsent_ = kDefaultKernelQueue;
  double rate_ = 0;    // bytes per second, the mean of:
  int samples_ = 0;    // enough of them: the connection may be paced
  Deadline until_{};   // when they are old
  double share_ = 0;   // of the rate, that it is paced to
  uint64_t pace_ = 0;  // 0: not paced
};

}  // namespace byteps_like
