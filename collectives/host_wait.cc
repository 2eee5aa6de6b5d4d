#include "collectives/host_wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace byteps_like {
namespace {

constexpr auto kSpinFor = std::chrono::microseconds(40);    // a little more than a wake-up
constexpr auto kYieldFor = std::chrono::microseconds(200);  // a few turns of every rank on a core
constexpr uint32_t kSpinsPerLook = 64, kYieldsPerLook = 8;

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

bool Patience::Step() {
  if (turns_ == 0) began_ = Clock::now();
  ++turns_;
  if (may_spin_) {
    Relax();
    return turns_ % kSpinsPerLook != 0 || Clock::now() - began_ < kSpinFor;
  }
  ::sched_yield();
  return turns_ % kYieldsPerLook != 0 || Clock::now() - began_ < kYieldFor;
}

}  // namespace byteps_like
