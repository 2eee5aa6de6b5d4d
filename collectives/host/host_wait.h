// How a thread waits for words that other processes write: it looks again and again for a bounded time, then sleeps on
// a bell in the shared memory. A wake-up costs 25 us, a look 0.04 us; where more ranks than cores wait, looking must
// leave the core to those that are waited for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "csrc/transport/stream.h"

namespace byteps_like {

// Sleeps while `word` holds `value`, until `deadline` or WakeAll, across processes.
void SleepOn(std::atomic<uint32_t>& word, uint32_t value, Deadline deadline);
void WakeAll(std::atomic<uint32_t>& word);

// The looks of one wait. Step() passes a moment; false: it has been long enough, sleep.
class Patience {
 public:
  explicit Patience(bool may_spin) : may_spin_(may_spin) {}
  void Reset() { turns_ = yields_ = 0; }
  bool Step();

 private:
  bool may_spin_;
  uint32_t turns_ = 0, yields_ = 0;
  Deadline began_;
};

}  // namespace byteps_like
