// Threads that wait for their operations run the engine's loop meanwhile: one at a time, none forgotten.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string_view>

#include "tests/native/compression/coded_fixture.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/slow.h"

namespace byteps_like::testing {
namespace {

constexpr int kBlocks = 20, kRounds = 50, kTries = 20;
// The shard's and the caller's, in rounds that take longer than their patience. Shorter ones need none.
constexpr double kMostSleeps = kSlow > 1 ? 2.2 : 0.5;

// How often threads of this process have gone to sleep.
int64_t Sleeps() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw;
}

// Of blocks of rounds, the fewest in one, per round: on a busy machine a round may take so long that the engine's own
// thread comes back in between.
double SleepsPerRound(Tensor<float>& tensor) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int block = 0; block < kBlocks; ++block) {
    const int64_t before = Sleeps();
    for (int round = 0; round < kRounds; ++round) CHECK(tensor.Run(Op::kSum).ok());
    least = std::min(least, Sleeps() - before);
  }
  return double(least) / kRounds;
}

// The fewest of some tries, the last of which is below a bound, if any is: a machine may be busy for longer than one.
template <typename Measure>
double FewestSleeps(double bound, const Measure& measure) {
  double least = measure();
  for (int tries = 1; tries < kTries && least > bound; ++tries) least = std::min(least, measure());
  return least;
}

// Two workers and a shard, which are told that they outnumber the cores: in rounds that take longer than their
// patience, and over TCP, whose shard doesn't poll, each caller sleeps once, until its result is there, and the shard
// twice, until either contribution is. The engines' own threads look once a millisecond whether they are needed.
constexpr double kMostSleepsInACrowd = 2 + 2 + (kSlow > 1 ? 2 : 0.5);

double SleepsPerRoundInACrowd(const char* scheme, bool shared) {
  Cluster cluster({.workers = 2, .scheme = scheme, .local_workers = 1 << 20});
  double sleeps = 0;
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, 1024, DType::kFloat32, 0, shared);
    const double of_all = SleepsPerRound(tensor);  // the same for both, but for a round more or less
    if (rank == 0) sleeps = of_all;
  });
  return sleeps;
}

}  // namespace

TEST_CASE("waiting: a short round is over before its caller or a shard of its host sleeps, and wakes no other thread") {
  if (std::thread::hardware_concurrency() < 2) {
    MESSAGE("skipped: no shard polls where there is one core");
    return;
  }
  for (const char* scheme : {"inproc", "shm", "tcp"})
    for (const bool shared : {false, true}) {
      CAPTURE(scheme);
      Cluster cluster({.workers = 1, .scheme = scheme});
      Tensor<float> tensor(cluster, 0, 1024, DType::kFloat32, 0, shared);
      const double most = kMostSleeps + (std::string_view(scheme) == "tcp");  // whose shard doesn't poll
      CHECK(FewestSleeps(most, [&] { return SleepsPerRound(tensor); }) <= most);
    }
}

TEST_CASE("waiting: a short round is over before anybody sleeps even where they outnumber the cores of their host") {
  for (const char* scheme : {"inproc", "shm", "tcp"})
    for (const bool shared : {false, true}) {
      CAPTURE(scheme);
      CAPTURE(shared);
      const bool polls = std::string_view(scheme) != "tcp" && kSlow == 1;
      const double most = polls ? kMostSleeps : kMostSleepsInACrowd;
      CHECK(FewestSleeps(most, [&] { return SleepsPerRoundInACrowd(scheme, shared); }) <= most);
    }
}

TEST_CASE("waiting: operations end that a codec thread ends while their caller runs the loop") {
  constexpr uint32_t kCount = 1 << 20;  // which takes longer to decode than their patience
  Cluster cluster({.workers = 1, .segment_bytes = 1 << 20, .partition_bytes = 4 * kCount});
  CodedTensor tensor(cluster, 0, kCount, {CodecOf(kOnebit, 1), kOnebit}, 0);
  std::vector<double> seconds;
  for (uint32_t round = 0; round < 100 / kSlow; ++round) {
    const auto begin = Clock::now();
    CHECK(tensor.Run(Op::kSum).ok());
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::ranges::sort(seconds);
  // A caller that is told of nothing looks five times a second. Sanitizers may need as long for a round.
  if (kSlow == 1) CHECK(seconds[seconds.size() / 2] < 0.2);
}

TEST_CASE("waiting: many threads wait at once, each for its own operations") {
  constexpr uint32_t kThreads = 6;
  const int rounds = 200 / int(kSlow) + 1;
  Cluster cluster({.workers = 2, .scheme = "shm"});
  cluster.Everybody([&](uint32_t rank) {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (uint32_t number = 0; number < kThreads; ++number)
      threads.emplace_back([&, number] {
        Tensor<float> tensor(cluster, rank, 1000 * number + 1, DType::kFloat32, 100 * number, number % 2 == 0);
        for (int round = 0; round < rounds; ++round) {
          std::fill_n(tensor.data(), tensor.size(), float(rank + 1));
          wrong += !tensor.Run(Op::kSum).ok() || tensor.data()[tensor.size() - 1] != 3;
        }
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  });
}

TEST_CASE("waiting: operations end that nobody waits for, whoever has run the loop before") {
  Cluster cluster({.workers = 1, .scheme = "shm"});
  Tensor<float> tensor(cluster, 0, 50'000, DType::kFloat32, 0);
  for (int round = 0; round < 50; ++round) {
    CHECK(tensor.Run(Op::kSum).ok());
    auto operation = tensor.Start(Op::kSum);
    REQUIRE(operation.ok());
    const Deadline end = In(5 * kSlow);
    while (!(*operation)->done() && Clock::now() < end) std::this_thread::yield();
    CHECK((*operation)->done());
  }
}

}  // namespace byteps_like::testing
