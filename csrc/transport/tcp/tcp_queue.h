// How many of our bytes may lie in the kernel, and in the queue before a line, for one TCP connection.
#pragma once

#include <cstdint>

#include "csrc/transport/stream.h"

namespace byteps_like {

class TcpQueue {
 public:
  explicit TcpQueue(int fd);  // kDefaultKernelQueue unsent at most, what is under way is left to the kernel

  void Limit(uint32_t unsent_bytes);  // Stream::LimitQueue

  // True: the connection is paced below the rate of its path, so that the queue before the narrowest line stays empty
  // for other connections, and less lies unsent. The rate is that at which bytes went through while that queue stood,
  // so this must be called every 20 ms or so. Returns whether it is paced now: not where no queue was seen, nor where
  // the rate is beyond what matters.
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
