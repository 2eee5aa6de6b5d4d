// Whole rounds over links that write unseen into what they were offered: all of large results comes so, a link that
// breaks at any such moment spoils nothing, and memory that is given back is left alone.
#include <doctest/doctest.h>

#include "tests/native/coded_fixture.h"
#include "tests/native/placing_link.h"

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

}  // namespace byteps_like::testing
