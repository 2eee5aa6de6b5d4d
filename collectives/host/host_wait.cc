#include "collectives/host/host_wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace byteps_like {
namespace {

constexpr auto kLookFor = std::chrono::microseconds(200);  // several wake-ups; a few turns of every rank on a core
constexpr uint32_t kSpins = 128;                           // a few us
constexpr uint32_t kYieldsPerLook = 8;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void SleepOn(std::atomic<uint32_t>& word, uint32_t value, Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
  if (left <= 0) return;
  const timespec span{.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &span, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Even with enough cores, the thread that this one waits for may have been put on the same core. So after a moment the
// core is yielded, which costs less than a microsecond if no thread takes it.
bool Patience::Step() {
  ++turns_;
  if (may_spin_ && turns_ <= kSpins) {
    Relax();
    return true;
  }
  if (yields_++ == 0) began_ = Clock::now();
  ::sched_yield();
  return yields_ % kYieldsPerLook != 0 || Clock::now() - began_ < kLookFor;
}

}  // namespace byteps_like
