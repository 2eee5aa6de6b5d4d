// Whole rounds over links that write unseen into what they were offered: all of large results comes so, a link that
// breaks at any such moment spoils nothing, and memory that is given back is left alone.
#include <doctest/doctest.h>

#include <array>
#include <random>

#include "server/policy/policies.h"
#include "server/rounds/dense_round.h"
#include "tests/native/compression/coded_fixture.h"
#include "tests/native/transport/links/placing_link.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kPart = 256 << 10;
constexpr size_t kCount = kPart / sizeof(int32_t);

ClusterOptions Options(uint32_t workers) {
  UsePlacing();
  ClusterOptions options;
  options.workers = workers;
  options.scheme = "placing";
  options.segment_bytes = 32 << 10;
  options.partition_bytes = kPart;
  return options;
}

using Ints = Tensor<int32_t>;

int32_t Value(uint32_t rank, uint32_t round, size_t i) {
  return static_cast<int32_t>((i * 31 + round * 7 + rank * 1013) % 1000);
}

// A round of all ranks; how many elements came out wrong, of any.
size_t WrongAfter(Cluster& cluster, std::vector<std::unique_ptr<Ints>>& tensors, uint32_t round) {
  std::atomic<size_t> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Ints& tensor = *tensors[rank];
    for (size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = Value(rank, round, i);
    const Status status = tensor.Run(Op::kSum);
    if (!status.ok()) MESSAGE("rank ", rank, ": ", status.message());
    for (size_t i = 0; i < tensor.size(); ++i) {
      int32_t sum = 0;
      for (uint32_t each = 0; each < tensors.size(); ++each) sum += Value(each, round, i);
      wrong += !status.ok() || tensor.data()[i] != sum;
    }
  });
  return wrong;
}

std::vector<std::unique_ptr<Ints>> Tensors(Cluster& cluster, size_t count, bool shared = true) {
  std::vector<std::unique_ptr<Ints>> tensors;
  for (uint32_t rank = 0; rank < cluster.options().workers; ++rank)
    tensors.push_back(std::make_unique<Ints>(cluster, rank, count, DType::kInt32, 0, shared));
  return tensors;
}

}  // namespace

TEST_CASE("offers: all of the results of an arena is written there by the server") {
  Cluster cluster(Options(3));
  auto tensors = Tensors(cluster, 2 * kCount + 1000);
  for (uint32_t round = 0; round < 4; ++round) CHECK(WrongAfter(cluster, tensors, round) == 0);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const LinkCounters counters = cluster.engine(rank).counters();
    CHECK(counters.payload_received == 4 * (2 * kCount + 1000) * sizeof(int32_t));
    CHECK(counters.payload_placed == counters.payload_received);
  }
  CHECK(placing.torn == 0);
}

TEST_CASE("offers: memory that is not long-lived is not offered") {
  Cluster cluster(Options(2));
  auto tensors = Tensors(cluster, kCount, false);
  for (uint32_t round = 0; round < 2; ++round) CHECK(WrongAfter(cluster, tensors, round) == 0);
  CHECK(cluster.engine(0).counters().payload_placed == 0);
}

// What is written and not told lies in the memory that is pushed from.
TEST_CASE("offers: a link that breaks when a payload was written and not told spoils nothing") {
  uint64_t breaks = 0;
  for (int64_t at = 0;; at += 3 * kSlow) {
    Cluster cluster(Options(2));
    auto tensors = Tensors(cluster, kCount);
    const uint64_t before = placing.written;
    placing.break_at = at;
    for (uint32_t round = 0; round < 4; ++round) REQUIRE(WrongAfter(cluster, tensors, round) == 0);
    if (placing.break_at.exchange(-1) >= 0) break;
    CHECK(placing.written > before);
    ++breaks;
  }
  CHECK(breaks > 10 / kSlow);
  CHECK(placing.torn == 0);
}

TEST_CASE("offers: results of codecs come to where they are decoded from, also over a link that breaks") {
  constexpr uint32_t kNumel = 1 << 20;
  for (const std::string spec : {"onebit:block=32768", "blocksparse:block=256,dense=0.8", "fp16",
                                 "int:bits=8,block=256,rounding=nearest,scale=own,seed=0",
                                 "int:bits=4,block=256,rounding=stochastic,scale=shared,seed=0"}) {
    CAPTURE(spec);
    std::vector<Floats> results;
    for (const std::string scheme : {"inproc", "placing"}) {
      ClusterOptions options = Options(2);
      options.scheme = scheme;
      options.partition_bytes = 4 << 20;
      Cluster cluster(options);
      std::vector<std::unique_ptr<CodedTensor>> tensors;
      for (uint32_t rank = 0; rank < 2; ++rank)
        tensors.push_back(std::make_unique<CodedTensor>(cluster, rank, kNumel, CodecUse{CodecOf(spec, 2), spec}, 40));
      for (uint32_t round = 0; round < 3; ++round) {
        if (round == 2) placing.break_at = 1;
        cluster.Everybody([&](uint32_t rank) {
          for (size_t i = 0; i < kNumel; ++i)
            tensors[rank]->data()[i] = static_cast<float>(Value(rank, round, i / 64)) * (i / 64 % 3 == rank);
          const Status status = tensors[rank]->Run(Op::kSum);
          if (!status.ok()) MESSAGE("rank ", rank, ": ", status.message());
        });
      }
      placing.break_at = -1;
      results.push_back(tensors[1]->data());
      const LinkCounters counters = cluster.engine(0).counters();
      if (scheme == "placing") CHECK(counters.payload_placed > 0);
    }
    CHECK(results[0] == results[1]);
  }
  CHECK(placing.torn == 0);
}

TEST_CASE("offers: once an operation has ended before its time, nothing lands in its memory") {
  Cluster cluster(Options(2));
  auto tensors = Tensors(cluster, 32 * kCount);
  REQUIRE(WrongAfter(cluster, tensors, 0) == 0);
  std::vector<Result<std::shared_ptr<Operation>>> sums;
  for (auto& tensor : tensors) sums.push_back(tensor->Start(Op::kSum));
  const uint64_t before = placing.written;
  while (placing.written < before + 20) std::this_thread::yield();
  cluster.engine(0).Fail(Code::kStalled, "enough");
  CHECK(cluster.engine(0).Wait(**sums[0], In(10)).code() == Code::kStalled);
  Ints& mine = *tensors[0];
  std::fill_n(mine.data(), mine.size(), -1);
  CHECK_FALSE(cluster.engine(1).Wait(**sums[1], In(0.2)).ok());  // time for the server to write, if it could
  CHECK(std::all_of(mine.data(), mine.data() + mine.size(), [](int32_t value) { return value == -1; }));
}

// A round in which the ranks come one after the other: the next begins when all of the one before has come.
static void RunInOrder(Cluster& cluster, std::vector<std::unique_ptr<Ints>>& tensors, std::vector<uint32_t> order,
                       uint32_t round) {
  const ShardStats& stats = cluster.server(0).shards()[0]->stats();
  std::vector<Result<std::shared_ptr<Operation>>> sums;
  for (const uint32_t rank : order) {
    Ints& tensor = *tensors[rank];
    for (size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = Value(rank, round, i);
    const uint64_t before = stats.payload_received;
    sums.push_back(tensor.Start(Op::kSum));
    const Deadline limit = In(10);
    while (stats.payload_received < before + tensor.size() * sizeof(int32_t) && Clock::now() < limit)
      std::this_thread::yield();
  }
  for (size_t i = 0; i < order.size(); ++i) REQUIRE(cluster.engine(order[i]).Wait(**sums[i], In(10)).ok());
  for (const uint32_t rank : order) {
    size_t wrong = 0;
    for (size_t i = 0; i < tensors[rank]->size(); ++i) {
      int32_t sum = 0;
      for (uint32_t each = 0; each < tensors.size(); ++each) sum += Value(each, round, i);
      wrong += tensors[rank]->data()[i] != sum;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("offers: who comes first writes into the accumulator; if it comes last the others are summed aside") {
  constexpr uint64_t kBytes = kCount * sizeof(int32_t);
  Cluster cluster(Options(3));
  auto tensors = Tensors(cluster, kCount);
  const ShardStats& stats = cluster.server(0).shards()[0]->stats();
  uint32_t round = 0;
  const auto run = [&](std::vector<uint32_t> order) { RunInOrder(cluster, tensors, std::move(order), round++); };
  run({0, 1, 2});
  run({0, 1, 2});  // the other accumulator
  CHECK(stats.payload_placed == 0);
  CHECK(stats.memory == 2 * kBytes);
  for (int i = 0; i < 4; ++i) run({0, 2, 1});
  CHECK(stats.payload_placed == 4 * kBytes);
  CHECK(stats.memory == 2 * kBytes);
  run({1, 2, 0});
  run({1, 0, 2});
  CHECK(stats.payload_placed == 6 * kBytes);  // still of rank 0
  CHECK(stats.memory == 3 * kBytes);
  run({2, 1, 0});
  run({2, 0, 1});
  CHECK(stats.payload_placed == 8 * kBytes);  // of rank 1
  for (int i = 0; i < 2; ++i) run({2, 1, 0});
  CHECK(stats.payload_placed == 10 * kBytes);
  CHECK(stats.memory == 3 * kBytes);
  CHECK(placing.torn == 0);
}

TEST_CASE("offers: a server that has used half of its memory lends none") {
  ClusterOptions options = Options(2);
  options.memory_limit = 5 * kPart / 2;
  Cluster cluster(options);
  auto tensors = Tensors(cluster, kCount);
  for (uint32_t round = 0; round < 6; ++round) RunInOrder(cluster, tensors, {1, 0}, round);
  const ShardStats& stats = cluster.server(0).shards()[0]->stats();
  CHECK(stats.payload_placed == kPart);  // lent when there was one accumulator, taken back with two
  CHECK(stats.memory <= options.memory_limit);
}

// Any of them in any order, in rounds of all kinds: what is lent to one rank may be another's to fill, or nobody's.
TEST_CASE("offers: sums, averages and broadcasts from all roots take turns on the same keys") {
  constexpr uint32_t kRanks = 3, kRounds = 40 / kSlow;
  Cluster cluster(Options(kRanks));
  std::mt19937 random(7);
  struct Step {
    Op op;
    uint32_t root;
    std::array<uint32_t, kRanks> wait_us;
  };
  std::vector<Step> steps;
  for (uint32_t i = 0; i < kRounds; ++i) {
    constexpr Op kOps[] = {Op::kSum, Op::kSum, Op::kAverage, Op::kMax, Op::kBroadcast};
    steps.push_back({kOps[random() % 5], static_cast<uint32_t>(random() % kRanks), {}});
    for (uint32_t& wait : steps.back().wait_us) wait = random() % 3 == 0 ? random() % 3000 : 0;
  }
  std::atomic<size_t> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Tensor<double> tensor(cluster, rank, kCount, DType::kFloat64, 0, true);
    for (uint32_t round = 0; round < kRounds; ++round) {
      const Step& step = steps[round];
      for (size_t i = 0; i < kCount; ++i) tensor.data()[i] = Value(rank, round, i);
      std::this_thread::sleep_for(std::chrono::microseconds(step.wait_us[rank]));
      wrong += !tensor.Run(step.op, step.root).ok();
      for (size_t i = 0; i < kCount; ++i) {
        double sum = 0, most = 0;
        for (uint32_t each = 0; each < kRanks; ++each) {
          sum += Value(each, round, i);
          most = std::max<double>(most, Value(each, round, i));
        }
        const double expected = step.op == Op::kMax         ? most
                                : step.op == Op::kAverage   ? sum / kRanks
                                : step.op == Op::kBroadcast ? Value(step.root, round, i)
                                                            : sum;
        wrong += tensor.data()[i] != expected;
      }
    }
  });
  CHECK(wrong == 0);
  CHECK(cluster.server(0).shards()[0]->stats().payload_placed > 0);
  CHECK(placing.torn == 0);
}

// A broadcast of a tensor with a codec goes raw: its rounds are of another type, or kind, than those between.
TEST_CASE("offers: rounds of codecs and raw ones take turns on the same keys") {
  for (const std::string spec : {"fixed:bits=32,block=256", "fp16", "onebit:block=32768"}) {
    CAPTURE(spec);
    constexpr uint32_t kNumel = kPart / sizeof(float);
    Cluster cluster(Options(2));
    std::atomic<size_t> wrong{0};
    std::array<Floats, 2> sums;
    cluster.Everybody([&](uint32_t rank) {
      CodedTensor tensor(cluster, rank, kNumel, {CodecOf(spec, 2), spec}, 0);
      for (uint32_t round = 0; round < 12; ++round) {
        const bool broadcast = round % 3 == 2;
        for (size_t i = 0; i < kNumel; ++i) tensor.data()[i] = static_cast<float>(Value(rank, round, i));
        wrong += !tensor.Run(broadcast ? Op::kBroadcast : Op::kSum, round % 2).ok();
        for (size_t i = 0; i < kNumel && broadcast; ++i)
          wrong += tensor.data()[i] != static_cast<float>(Value(round % 2, round, i));
        if (spec.starts_with("fixed") && !broadcast)
          for (size_t i = 0; i < kNumel; ++i)
            wrong += std::fabs(tensor.data()[i] - static_cast<float>(Value(0, round, i) + Value(1, round, i))) > 0.01f;
        if (round == 10) sums[rank] = tensor.data();
      }
    });
    CHECK(wrong == 0);
    CHECK(sums[0] == sums[1]);
  }
  CHECK(placing.torn == 0);
}

TEST_CASE("offers: a round of another type or length leaves alone what is lent") {
  std::atomic<uint64_t> held{0};
  ShardMemory memory("a shard", 0, held);
  DenseRound round(0, memory);
  auto streams = MakeStreams(FreshUrl("inproc"));
  LoopThread thread;
  Peer peer(thread, std::move(streams.client));
  const Bytes ones = [] {
    std::vector<float> values(kCount, 1.0f);
    const auto bytes = std::as_bytes(std::span(values));
    return Bytes(bytes.begin(), bytes.end());
  }();
  std::span<std::byte> lent;
  const Seats seats(2);
  const auto run = [&](DType dtype, uint32_t total) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Header push;
      push.dtype = dtype;
      push.rank = rank;
      push.total = push.length = total;
      const Terms terms = TermsOf(push, nullptr);
      if (rank == 0) round.Begin(push, terms, {*FindPolicy(Policies(), terms)}, seats);
      REQUIRE(round.Reserve(push).ok());
      REQUIRE(round.Land(peer.link(), push, ones.data()).ok());
      std::fill(lent.begin(), lent.end(), std::byte{0xff});  // the tenant may write there all the time
    }
    REQUIRE(*round.Advance());
  };
  run(DType::kFloat32, kPart / 2);
  lent = round.Lendable();
  REQUIRE(lent.size() >= kPart / 2);
  round.Lend(0);
  run(DType::kFloat32, kPart);
  CHECK(reinterpret_cast<const float*>(round.result())[kCount - 1] == 2.0f);
  run(DType::kFloat16, kPart / 2);
  CHECK(reinterpret_cast<const uint16_t*>(round.result())[1] == 0x4380);  // 3.75: twice the upper half of 1.0f
  CHECK(round.lent_to() == 0);
}

}  // namespace byteps_like::testing
