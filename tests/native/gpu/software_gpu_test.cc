// The software GPU itself: what a kernel may not do is told, with the threads named.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

// The language comes before what is written in it.
// clang-format off
#include "tests/software_gpu/cuda.h"
#include "csrc/cuda/device.cuh"
#include "tests/software_gpu/kernels.h"
#include "tests/software_gpu/stack.h"
// clang-format on

namespace software_gpu {
namespace {

void some_wait(u32 threads) {
  if (threadIdx.x < threads) __syncthreads();
}
void lanes_differ(u32* out) {
  if (threadIdx.x == 3) out[0] = __ballot_sync(kAllLanes, 1);
  out[1] = __shfl_sync(kAllLanes, 1u, 0);
}
void part_of_a_warp(u32 mask) { __shfl_sync(mask, 1, 0); }
void reductions(const u32* values, u32* sums, u32* totals, u32* most) {
  __shared__ u32 shared[3][kWarp];
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  sums[i] = BlockSumBefore(values[i], shared[0], &totals[i]);
  most[i] = BlockMax(values[i], shared[1]) + BlockSum(values[i], shared[2]);
}
void rubbish(u32* out) {
  DYNAMIC_SHARED(u32, words);
  out[blockIdx.x] = words[0];
  words[0] = 0;
}

template <auto kFunction, typename... A>
std::string Run(Shape shape, A... arguments) {
  const Kernel kernel = Caller<kFunction>::Row("k", shape.threads);
  void* const addresses[] = {&arguments...};
  return Launch(kernel, shape, addresses);
}

}  // namespace

TEST_CASE("software gpu: threads that don't come to a barrier are named") {
  const std::string failure = Run<some_wait>({.blocks = 1, .threads = 64}, 40u);
  CHECK(failure == "kernel k: block 0: threads wait for ever: from 0 waits at __syncthreads; from 40 has ended;");
  CHECK(Run<some_wait>({.blocks = 3, .threads = 64}, 64u).empty());
}

TEST_CASE("software gpu: lanes of a warp meet at the same place, all of them") {
  std::vector<u32> out(2);
  const std::string failure = Run<lanes_differ>({.blocks = 1, .threads = 32}, out.data());
  CHECK(failure.find("thread 3 is at __ballot_sync, others it shares a warp or block with at __shfl_sync") !=
        std::string::npos);
  CHECK(Run<part_of_a_warp>({.blocks = 1, .threads = 32}, 15u).find("leaves lanes") != std::string::npos);
  CHECK(Run<part_of_a_warp>({.blocks = 1, .threads = 16}, kAllLanes).find("no whole number") != std::string::npos);
}

TEST_CASE("software gpu: sums and maxima of a block") {
  constexpr u32 kThreads = 96, kBlocks = 2;
  std::vector<u32> values(kThreads * kBlocks), sums(values), totals(values), most(values);
  for (u32 i = 0; i < values.size(); ++i) values[i] = i * i % 31;
  REQUIRE(Run<reductions>({.blocks = kBlocks, .threads = kThreads}, static_cast<const u32*>(values.data()), sums.data(),
                          totals.data(), most.data())
              .empty());
  for (u32 block = 0; block < kBlocks; ++block) {
    u32 total = 0, greatest = 0;
    for (u32 i = block * kThreads; i < (block + 1) * kThreads; ++i) {
      CHECK(sums[i] == total);
      total += values[i];
      greatest = values[i] > greatest ? values[i] : greatest;
    }
    CHECK(totals[block * kThreads + 5] == total);
    CHECK(most[block * kThreads + 70] == total + greatest);
  }
}

TEST_CASE("software gpu: shared memory begins as rubbish in every block, and a block has its size") {
  std::vector<u32> out(2);
  REQUIRE(Run<rubbish>({.blocks = 2, .threads = 1, .shared = 4}, out.data()).empty());
  CHECK(out == std::vector<u32>(2, 0xA5A5A5A5u));
  REQUIRE(Find("casts_encode_bf16") != nullptr);
  CHECK(Launch(*Find("casts_encode_bf16"), {.blocks = 1, .threads = 32}, nullptr) ==
        "kernel casts_encode_bf16: launched with 32 threads a block, written for 256");
}

#if defined(MAP_FIXED_NOREPLACE)
TEST_CASE("software gpu: what is mapped where a thread's stack was is memory like any other") {
  static Stack* on = nullptr;
  static char* inside = nullptr;
  constexpr size_t kPage = 4096;
  {
    Stack stack;
    on = &stack;
    stack.Begin([] {
      char local[2 * kPage];  // the address sanitizer marks what is before and behind it
      inside = local;
      std::memset(inside, 1, sizeof(local));
      on->GiveWay();
    });
    stack.Resume();
  }
  char* const page = inside - reinterpret_cast<uintptr_t>(inside) % kPage;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  void* const mapped = ::mmap(page, kPage, PROT_READ | PROT_WRITE, flags, -1, 0);
  REQUIRE(mapped == page);
  std::memset(mapped, 2, kPage);
  CHECK(page[kPage - 1] == 2);
  ::munmap(mapped, kPage);
}
#endif

}  // namespace software_gpu
