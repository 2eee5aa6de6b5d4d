// Jobs on bad links whose servers keep tables: every contribution counts once in each row that it names, and every read
// is of one version of each shard. Sums of integers are exactly right.
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/log.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/slow.h"

namespace byteps_like::testing {
namespace {

constexpr uint64_t kJobs = 200;
constexpr uint32_t kRowWidth = 3;
constexpr uint64_t kIds = 1500;
constexpr uint32_t kPushes = 8, kLists = 4;

const char* PolicyOf(uint64_t seed) {
  constexpr const char* kPolicies[] = {"asp", "ssp:s=2", "bsp", "dssp:lo=1,hi=3",
                                       "k_of_n:grace=0,k=1,late=next,max_age=inf"};
  return kPolicies[seed % std::size(kPolicies)];
}

ClusterOptions BadLinks(uint64_t seed) {
  constexpr const char* kChaos[] = {"drop=0.005", "corrupt=0.005", "delay_ms=0.5", "drop=0.003&corrupt=0.003", ""};
  constexpr const char* kSchemes[] = {"tcp", "inproc", "shm"};
  ClusterOptions options;
  options.workers = 2 + seed % 2;
  options.servers = 1 + seed / 2 % 2;
  options.scheme = kSchemes[seed % 3];
  options.chaos = kChaos[seed / 5 % 5];
  options.seed = seed;
  if (seed % 4 == 0) options.credit_bytes = 20'000;
  return options;
}

int64_t Pushed(uint32_t rank, uint32_t step) { return int64_t{1} << (10 * rank + step); }  // a bit each

// Which ids a list has, of all ranks and steps; all have those that 7 divides.
bool Names(uint32_t list, uint64_t id) { return id % 7 == 0 || (id * (2 * list + 3)) % 11 < 4; }
uint32_t ListOf(uint32_t rank, uint32_t step) { return (rank + step / 2) % kLists; }

std::shared_ptr<const RowList> MakeList(const std::function<bool(uint64_t)>& chosen) {
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; id < kIds; ++id)
    if (chosen(id)) ids.push_back(id << 40);
  return std::make_shared<const RowList>(ids);
}

// What one rank does with the table: the same ids at each shard.
class Member {
 public:
  Member(Cluster& cluster, uint64_t seed, uint32_t rank)
      : engine_(cluster.engine(rank)), rank_(rank), workers_(cluster.options().workers), draw_(seed * 10 + rank) {
    const uint32_t shards = cluster.options().servers * cluster.options().shards;
    std::vector<PartitionSpec> buckets;
    for (uint32_t shard = 0; shard < shards; ++shard) buckets.push_back({50 + shard, shard * 64, 64, shard});
    tensor_ = engine_.Declare(DType::kInt64, buckets);
    parts_.resize(shards);
    std::iota(parts_.begin(), parts_.end(), 0);
    for (uint32_t list = 0; list < kLists; ++list)
      lists_.push_back(MakeList([&](uint64_t id) { return Names(list, id); }));
    for (uint32_t step = 0; step < kPushes; ++step)
      sent_.emplace_back(lists_[ListOf(rank, step)]->ids.size() * kRowWidth, Pushed(rank, step));
  }

  Status Open(const std::string& policy) {
    return Over(
        engine_.KeepTable({.tensor = tensor_,
                           .parts = parts_,
                           .text = "policy " + policy + "\ncombine sum:age=none,damp=none\nupdate add\nrows zeros",
                           .width = kRowWidth}));
  }

  Status Train() {
    std::vector<std::shared_ptr<KeepOperation>> pushes;
    for (uint32_t step = 0; step < kPushes; ++step) {
      auto push = engine_.ContributeRows(tensor_, Rows(lists_[ListOf(rank_, step)], sent_[step]), {},
                                         static_cast<int32_t>(draw_() % 2));
      if (!push.ok()) return push.status();
      pushes.push_back(*push);
      if (draw_() % 3 == 0)
        if (const Status status = Read(lists_[draw_() % kLists]); !status.ok()) return status;
    }
    for (const auto& push : pushes) {
      if (const Status status = Wait(*push); !status.ok()) return status;
      for (const KeepOutcome& one : push->outcomes) wrong += one.applied != Applied::kCounted || one.version == 0;
    }
    return {};
  }

  Status Read(const std::shared_ptr<const RowList>& list) {
    std::vector<std::vector<int64_t>> values(parts_.size(), std::vector<int64_t>(list->ids.size() * kRowWidth, -1));
    std::vector<Engine::TableRows> rows;
    for (const uint32_t part : parts_) rows.push_back({part, list, reinterpret_cast<std::byte*>(values[part].data())});
    const Status status = Over(engine_.FetchRows(tensor_, rows, 0));
    if (!status.ok()) return status;
    for (const auto& value : values) Check(list->ids, value);
    return status;
  }

  // Every contribution is in all rows that it names.
  Status ReadAll() {
    const size_t before = whole_;
    const Status status = Read(MakeList([](uint64_t) { return true; }));
    wrong += status.ok() && whole_ != before + parts_.size();
    auto ranged = engine_.FetchRange({.tensor = tensor_, .parts = parts_},
                                     {7ull << 40, 15ull << 40, std::vector<uint64_t>(parts_.size()), 0});
    if (const Status failed = Over(ranged); !failed.ok()) return failed;
    for (const auto& found : (*ranged)->ranges) {
      const size_t count = found.size() / (8 + 8 * kRowWidth);
      std::vector<uint64_t> ids(count);
      std::vector<int64_t> value(count * kRowWidth);
      std::memcpy(ids.data(), found.data(), 8 * count);
      std::memcpy(value.data(), found.data() + 8 * count, 8 * kRowWidth * count);
      wrong += count == 0 || ids.front() != 7ull << 40 || ids.back() != 14ull << 40;
      Check(ids, value);
    }
    return status;
  }

  size_t wrong = 0;

 private:
  // A contribution is in all of its rows, or in none.
  void Check(const std::vector<uint64_t>& ids, const std::vector<int64_t>& value) {
    const int64_t seen = std::accumulate(value.begin(), value.end(), int64_t{0}, std::bit_or<>());
    int64_t all = 0;
    for (uint32_t rank = 0; rank < workers_; ++rank)
      for (uint32_t step = 0; step < kPushes; ++step) all |= Pushed(rank, step);
    wrong += (seen & ~all) != 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      int64_t wanted = 0;
      for (uint32_t rank = 0; rank < workers_; ++rank)
        for (uint32_t step = 0; step < kPushes; ++step)
          if (Names(ListOf(rank, step), ids[i] >> 40)) wanted |= Pushed(rank, step) & seen;
      for (size_t k = 0; k < kRowWidth; ++k) wrong += value[i * kRowWidth + k] != wanted;
    }
    whole_ += seen == all;
  }

  std::vector<Engine::TableRows> Rows(const std::shared_ptr<const RowList>& list, std::vector<int64_t>& at) const {
    std::vector<Engine::TableRows> rows;
    const auto bytes = static_cast<uint32_t>(at.size() * sizeof(int64_t));
    for (const uint32_t part : parts_) rows.push_back({part, list, reinterpret_cast<std::byte*>(at.data()), bytes});
    return rows;
  }
  Status Wait(KeepOperation& operation) { return engine_.Wait(operation, Clock::now() + std::chrono::seconds(30)); }
  Status Over(Result<std::shared_ptr<KeepOperation>> operation) {
    return operation.ok() ? Wait(**operation) : operation.status();
  }

  Engine& engine_;
  const uint32_t rank_, workers_;
  std::mt19937_64 draw_;
  uint32_t tensor_ = 0;
  std::vector<uint32_t> parts_;  // one of each shard
  std::vector<std::shared_ptr<const RowList>> lists_;
  std::vector<std::vector<int64_t>> sent_;
  size_t whole_ = 0;  // reads of a shard that had all contributions
};

// Wrong elements and outcomes, or failures with a message of each.
size_t KeepOn(uint64_t seed) {
  const ClusterOptions options = BadLinks(seed);
  Cluster cluster(options);
  std::barrier together(options.workers);
  std::atomic<size_t> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Member self(cluster, seed, rank);
    Status status = self.Open(PolicyOf(seed));
    if (status.ok()) status = self.Train();
    together.arrive_and_wait();
    if (status.ok()) status = self.ReadAll();
    wrong += self.wrong;
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

TEST_CASE("200 seeded jobs on bad links keep exactly the rows that were contributed") {
  std::atomic<int> broken{0};
  SetLogSink([&](LogLevel, std::string_view text) { broken += text.find("link lost") != text.npos; });
  size_t wrong = 0;
  for (uint64_t seed = 0; seed < kJobs / kSlow; ++seed) wrong += KeepOn(seed);
  SetLogSink(nullptr);
  CHECK(wrong == 0);
  CHECK(broken > static_cast<int>(kJobs / kSlow / 4));  // else this test proves little
}

}  // namespace byteps_like::testing
