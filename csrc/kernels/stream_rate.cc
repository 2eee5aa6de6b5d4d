#include "csrc/kernels/stream_rate.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "csrc/kernels/dispatch.h"

namespace byteps_like::kernels {
namespace {

using Clock = std::chrono::steady_clock;
struct Free {
  void operator()(float* array) const { std::free(array); }
};
using Array = std::unique_ptr<float, Free>;

// Zeros, in huge pages where the system has them: as NumPy and torch allocate.
Array MakeArray(size_t count) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = (count * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  Array array(static_cast<float*>(std::aligned_alloc(kHugePage, bytes)));
  if (array == nullptr) return array;
#if defined(__linux__)
  (void)madvise(array.get(), bytes, MADV_HUGEPAGE);
#endif
  std::fill_n(array.get(), count, 0.0f);
  return array;
}

// CPU time of this thread: what others use of the CPU is no property of the memory.
double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

void PlainAdd(float* a, const float* b, size_t count) { Active().table->plain_add(a, b, count); }
uint32_t PlainOr(const float* a, size_t count) { return Active().table->plain_or(a, count); }

double StreamRate(size_t bytes, double seconds) {
  constexpr size_t kLeastRuns = 3;
  const size_t count = std::max<size_t>(bytes / sizeof(float), 1);
  const Array a = MakeArray(count);
  const Array b = MakeArray(count);
  if (a == nullptr || b == nullptr) return 0;
  std::vector<double> rates;
  const Clock::time_point begin = Clock::now();
  while (rates.size() < kLeastRuns || SecondsSince(begin) < seconds) {
    const double before = ThreadSeconds();
    PlainAdd(a.get(), b.get(), count);
    rates.push_back(3.0 * static_cast<double>(count * sizeof(float)) / std::max(ThreadSeconds() - before, 1e-9));
  }
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace byteps_like::kernels
