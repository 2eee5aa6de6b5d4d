// Two hundred jobs on bad links: delay, stalls, drops with a push again, corruption. The sums are exactly right.
#include <doctest/doctest.h>

#include <atomic>
#include <string>

#include "csrc/base/log.h"
#include "tests/native/cluster_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr int kRuns = 200;
constexpr uint32_t kRounds = 4;
constexpr size_t kCount = 12007;

std::string ChaosFor(uint64_t seed) {
  switch (seed % 5) {
    case 0:
      return "drop=0.003";
    case 1:
      return "corrupt=0.003";
    case 2:
      return "delay_ms=1";
    case 3:
      return "stall=0.01&stall_ms=5";
    default:
      return "drop=0.002&corrupt=0.002&delay_ms=0.2";
  }
}

int32_t Value(uint64_t seed, uint32_t rank, uint32_t round, size_t i) {
  return static_cast<int32_t>((seed * 31 + rank * 1009 + round * 77 + i * 13) % 100000);
}

// Wrong elements, or a message of what failed.
size_t RunOne(uint64_t seed) {
  ClusterOptions options;
  options.workers = 2 + seed % 2;
  options.servers = 1 + seed % 2;
  options.scheme = seed % 3 == 0 ? "tcp" : seed % 3 == 1 ? "inproc" : "shm";
  options.chaos = ChaosFor(seed);
  options.seed = seed;
  Cluster cluster(options);
  std::atomic<size_t> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Tensor<int32_t> tensor(cluster, rank, kCount, DType::kInt32, 0);
    for (uint32_t round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < kCount; ++i) tensor.data()[i] = Value(seed, rank, round, i);
      const Status status = tensor.Run(Op::kSum);
      if (!status.ok()) {
        MESSAGE("seed " << seed << " (" << options.chaos << ", " << options.scheme << "): " << status.message());
        ++wrong;
        return;
      }
      for (size_t i = 0; i < kCount; ++i) {
        int32_t sum = 0;
        for (uint32_t other = 0; other < options.workers; ++other) sum += Value(seed, other, round, i);
        wrong += tensor.data()[i] != sum;
      }
    }
  });
  return wrong;
}

}  // namespace

TEST_CASE("200 seeded runs on bad links end with exactly the right integer sums") {
  std::atomic<int> broken{0};
  SetLogSink([&](LogLevel, std::string_view text) { broken += text.find("link lost") != text.npos; });
  size_t wrong = 0;
  for (uint64_t seed = 0; seed < kRuns; ++seed) wrong += RunOne(seed);
  SetLogSink(nullptr);
  CHECK(wrong == 0);
  CHECK(broken > kRuns / 2);  // else this test proves little
}

}  // namespace byteps_like::testing
