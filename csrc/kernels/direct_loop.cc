#include "csrc/kernels/direct_loop.h"

#include <sched.h>

#include <atomic>

#include "csrc/kernels/kernels.h"

namespace byteps_like::kernels {
namespace {

constexpr size_t kLineWords = 8;
constexpr uint32_t kLooks = 10000;  // some tens of microseconds; who waits longer than that may keep the others waiting

void MeetAll(uint64_t* counters, uint32_t rank, uint32_t size, bool yields) {
  std::atomic_ref<uint64_t> own(counters[rank * kLineWords]);
  const uint64_t turn = own.load(std::memory_order_relaxed) + 1;
  own.store(turn, std::memory_order_release);
  for (uint32_t other = 0; other < size; ++other) {
    std::atomic_ref<uint64_t> theirs(counters[other * kLineWords]);
    for (uint32_t looks = 0; theirs.load(std::memory_order_acquire) < turn; ++looks) {
      if (yields || looks > kLooks) sched_yield();
    }
  }
}

}  // namespace

void RunDirect(uint64_t* counters, uint32_t rank, uint32_t size, std::span<const DirectJob> jobs, uint32_t iterations,
               bool yields) {
  for (uint32_t i = 0; i < iterations; ++i) {
    MeetAll(counters, rank, size, yields);
    for (const DirectJob& job : jobs) {
      ReduceMany(Op::kSum, DType::kFloat32, job.destinations, job.sources, job.count, 1);
    }
  }
  MeetAll(counters, rank, size, yields);
}

}  // namespace byteps_like::kernels
