// Jobs on bad links whose servers keep values: every contribution counts once, under every policy, and every read is of
// one version of each partition. Sums of integers are exactly right.
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/log.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/slow.h"

namespace byteps_like::testing {
namespace {

constexpr uint64_t kJobs = 300;
constexpr size_t kElements = 5003;
constexpr uint32_t kPushes = 6;

const char* PolicyOf(uint64_t seed) {
  constexpr const char* kPolicies[] = {"asp", "ssp:s=2", "bsp", "dssp:lo=1,hi=3",
                                       "k_of_n:grace=0,k=1,late=next,max_age=inf"};
  return kPolicies[seed % std::size(kPolicies)];
}

ClusterOptions BadLinks(uint64_t seed) {
  constexpr const char* kChaos[] = {"drop=0.003", "corrupt=0.003", "delay_ms=0.5", "drop=0.002&corrupt=0.002", ""};
  constexpr const char* kSchemes[] = {"tcp", "inproc", "shm"};
  ClusterOptions options;
  options.workers = 2 + seed % 2;
  options.servers = 1 + seed / 2 % 2;
  options.scheme = kSchemes[seed % 3];
  options.chaos = kChaos[seed / 5 % 5];
  options.seed = seed;
  if (seed % 4 == 0) options.credit_bytes = 20'000;  // about one partition: not enough for all that is in flight
  return options;
}

int64_t First(size_t i) { return static_cast<int64_t>(i) * 1'000'003; }
int64_t Pushed(uint32_t rank, uint32_t step) { return int64_t{1} << (10 * rank + step); }  // a bit each

// What one rank does with the tensor.
class Member {
 public:
  Member(Cluster& cluster, uint64_t seed, uint32_t rank)
      : engine_(cluster.engine(rank)), rank_(rank), draw_(seed * 10 + rank), parts_(cluster.Cut(kElements * 8, 50)) {
    tensor_ = engine_.Declare(DType::kInt64, parts_);
    for (size_t i = 0; i < kElements; ++i) first_.push_back(First(i));
    for (uint32_t step = 0; step < kPushes; ++step) sent_.emplace_back(kElements, Pushed(rank, step));
  }

  Status Open(const std::string& policy) {
    Engine::KeepSpec spec{
        .tensor = tensor_, .text = "policy " + policy + "\ncombine sum:age=none,damp=none\nupdate add", .root = 1};
    if (rank_ == 1) spec.initial = std::as_bytes(std::span(first_));
    return Over(engine_.Keep(spec));
  }

  // Contributes all steps, and reads at times in between.
  Status Train() {
    std::vector<std::shared_ptr<KeepOperation>> pushes;
    for (uint32_t step = 0; step < kPushes; ++step) {
      auto push = engine_.Contribute(Whole(sent_[step]), {});
      if (!push.ok()) return push.status();
      pushes.push_back(*push);
      if (draw_() % 3 == 0)
        if (const Status status = Read(); !status.ok()) return status;
    }
    for (const auto& push : pushes) {
      if (const Status status = Wait(*push); !status.ok()) return status;
      for (const KeepOutcome& one : push->outcomes) wrong += one.applied != Applied::kCounted || one.version == 0;
    }
    return {};
  }

  Status Read() {
    std::vector<int64_t> value(kElements);
    const Status status = Over(engine_.Read(Whole(value), 0));
    if (!status.ok()) return status;
    for (const PartitionSpec& part : parts_) Check(value, part.offset / 8, (part.offset + part.bytes) / 8);
    return status;
  }

  size_t wrong = 0;
  std::vector<int64_t> sums;  // of what was contributed, as read last, by partition

 private:
  void Check(const std::vector<int64_t>& value, size_t begin, size_t end) {
    const int64_t sum = value[begin] - First(begin);
    for (size_t i = begin; i < end; ++i) wrong += value[i] - First(i) != sum;
    sums.resize(parts_.size());
    sums[begin * parts_.size() / kElements] = sum;
  }

  Engine::KeepRequest Whole(std::vector<int64_t>& memory) const {
    Engine::KeepRequest request{.tensor = tensor_, .address = reinterpret_cast<std::byte*>(memory.data())};
    for (uint32_t part = 0; part < parts_.size(); ++part) request.parts.push_back(part);
    request.priority = static_cast<int32_t>(rank_ % 2);
    return request;
  }
  Status Wait(KeepOperation& operation) { return engine_.Wait(operation, Clock::now() + std::chrono::seconds(30)); }
  Status Over(Result<std::shared_ptr<KeepOperation>> operation) {
    return operation.ok() ? Wait(**operation) : operation.status();
  }

  Engine& engine_;
  const uint32_t rank_;
  std::mt19937_64 draw_;
  const std::vector<PartitionSpec> parts_;
  uint32_t tensor_ = 0;
  std::vector<int64_t> first_;
  std::vector<std::vector<int64_t>> sent_;
};

// Wrong elements and outcomes, or failures with a message of each.
size_t KeepOn(uint64_t seed) {
  const ClusterOptions options = BadLinks(seed);
  Cluster cluster(options);
  std::barrier together(options.workers);
  std::atomic<size_t> wrong{0};
  int64_t all = 0;
  for (uint32_t rank = 0; rank < options.workers; ++rank)
    for (uint32_t step = 0; step < kPushes; ++step) all += Pushed(rank, step);
  cluster.Everybody([&](uint32_t rank) {
    Member self(cluster, seed, rank);
    Status status = self.Open(PolicyOf(seed));
    if (status.ok()) status = self.Train();
    together.arrive_and_wait();
    if (status.ok()) status = self.Read();
    wrong += self.wrong;
    for (const int64_t sum : self.sums) wrong += sum != all;
    if (!status.ok()) {
      ++wrong;
      MESSAGE("seed " << seed << ", " << std::string(PolicyOf(seed)) << ", " << options.chaos << ", " << options.scheme
                      << ": " << status.message());
    }
    together.arrive_and_wait();
    cluster.engine(rank).Close();  // its memory ends here
  });
  return wrong;
}

}  // namespace

TEST_CASE("300 seeded jobs on bad links keep exactly the values that were contributed") {
  std::atomic<int> broken{0};
  SetLogSink([&](LogLevel, std::string_view text) { broken += text.find("link lost") != text.npos; });
  size_t wrong = 0;
  for (uint64_t seed = 0; seed < kJobs / kSlow; ++seed) wrong += KeepOn(seed);
  SetLogSink(nullptr);
  CHECK(wrong == 0);
  CHECK(broken > static_cast<int>(kJobs / kSlow / 4));  // else this test proves little
}

}  // namespace byteps_like::testing
