// How long to look for completions again and again before sleeping: a bounded time, shorter and shorter where that is
// in vain, and as at first once they come close together again.
#pragma once

#include <algorithm>

#include "csrc/transport/stream.h"

namespace byteps_like::rdma {

class Patience {
 public:
  // Something was done.
  void OnBusy(Deadline now) {
    if (now - busy_at_ < kMost) in_vain_ = 0;
    busy_at_ = now;
  }
  // Whether to look again instead of sleeping.
  bool Lasts(Deadline now) const { return now - busy_at_ < kMost / (1 << in_vain_); }
  void OnSleep() { in_vain_ = std::min(in_vain_ + 1, kMostHalvings); }

 private:
  static constexpr std::chrono::nanoseconds kMost{20'000};  // about the cost of a sleep and a wake-up
  static constexpr int kMostHalvings = 6;

  Deadline busy_at_{};
  int in_vain_ = 0;
};

}  // namespace byteps_like::rdma
