// Engine and servers together, against closed forms: every transport, operation, mixture of shared and private memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string_view>

#include "tests/native/server/cluster_fixture.h"

namespace byteps_like::testing {
namespace {

// What rank r holds at i in round t: small integers, so that every order of summation is exact.
int64_t Value(uint32_t rank, size_t i, uint32_t round) {
  return static_cast<int64_t>(i * 7 % 50 + rank * 3 + round % 5);
}

template <typename T>
void FillWith(Tensor<T>& tensor, uint32_t rank, uint32_t round) {
  for (size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<T>(Value(rank, i, round));
}

template <typename T>
T SumOf(uint32_t workers, size_t i, uint32_t round) {
  int64_t sum = 0;
  for (uint32_t rank = 0; rank < workers; ++rank) sum += Value(rank, i, round);
  return static_cast<T>(sum);
}

template <typename T>
size_t WrongSums(Cluster& cluster, DType dtype, size_t count, uint32_t rounds, bool (*shares)(uint32_t rank),
                 uint64_t key = 100) {
  std::atomic<size_t> wrong{0};
  const uint32_t workers = cluster.options().workers;
  cluster.Everybody([&](uint32_t rank) {
    Tensor<T> tensor(cluster, rank, count, dtype, key, shares(rank));
    for (uint32_t round = 0; round < rounds; ++round) {
      FillWith(tensor, rank, round);
      const Status status = tensor.Run(Op::kSum);
      if (!status.ok()) {
        MESSAGE(status.message());
        ++wrong;
        return;
      }
      for (size_t i = 0; i < count; ++i) wrong += tensor.data()[i] != SumOf<T>(workers, i, round);
    }
  });
  return wrong;
}

bool EvenRanks(uint32_t rank) { return rank % 2 == 0; }

}  // namespace

TEST_CASE("sums are exact over every transport, world, and kind of memory") {
  for (const char* scheme : {"inproc", "shm", "tcp"})
    for (const uint32_t workers : {1u, 2u, 3u, 4u})
      for (auto* shares : {&Nobody, &All, &EvenRanks}) {
        ClusterOptions options;
        options.scheme = scheme;
        options.workers = workers;
        options.servers = 1 + workers % 3;
        options.shards = 1 + workers % 2;
        options.bounce_bytes = workers / 2 % 2 << 16;  // for less than a tensor
        CAPTURE(scheme);
        CAPTURE(workers);
        Cluster cluster(options);
        CHECK(WrongSums<float>(cluster, DType::kFloat32, 20011, 4, shares) == 0);
      }
}

TEST_CASE("every dtype") {
  Cluster cluster({.workers = 3, .servers = 2, .shards = 2});
  CHECK(WrongSums<double>(cluster, DType::kFloat64, 5003, 3, &EvenRanks) == 0);
  CHECK(WrongSums<int32_t>(cluster, DType::kInt32, 5003, 3, &EvenRanks, 200) == 0);
  CHECK(WrongSums<int64_t>(cluster, DType::kInt64, 5003, 3, &Nobody, 300) == 0);
  CHECK(WrongSums<uint8_t>(cluster, DType::kUInt8, 50003, 3, &All, 400) == 0);
  CHECK(WrongSums<int8_t>(cluster, DType::kInt8, 3, 3, &EvenRanks, 500) == 0);
  CHECK(WrongSums<int16_t>(cluster, DType::kInt16, 5003, 2, &EvenRanks, 600) == 0);
  CHECK(WrongSums<uint64_t>(cluster, DType::kUInt64, 5003, 2, &Nobody, 700) == 0);
}

TEST_CASE("bf16 is summed in fp32 and rounded once") {
  Cluster cluster({.workers = 3});
  constexpr uint16_t kOne = 0x3F80, kTiny = 0x3B80;  // 1 and 2^-8: 1 + 2^-8 rounds to 1, 1 + 2 * 2^-8 does not
  for (const bool shared : {false, true})
    cluster.Everybody([&](uint32_t rank) {
      Tensor<uint16_t> tensor(cluster, rank, 9001, DType::kBFloat16, shared ? 1000 : 0, shared);
      std::fill_n(tensor.data(), tensor.size(), rank == 0 ? kOne : kTiny);
      REQUIRE(tensor.Run(Op::kSum).ok());
      CHECK(tensor.data()[9000] == 0x3F81);
    });
}

TEST_CASE("average, min, max, product and broadcast") {
  Cluster cluster({.workers = 3, .servers = 2});
  for (const bool shared : {false, true})
    cluster.Everybody([&](uint32_t rank) {
      Tensor<float> tensor(cluster, rank, 9001, DType::kFloat32, shared ? 1000 : 0, shared && rank != 1);
      const auto run = [&](Op op, uint32_t root) {
        std::fill_n(tensor.data(), tensor.size(), static_cast<float>(rank + 2));
        REQUIRE(tensor.Run(op, root).ok());
        return tensor.data()[tensor.size() - 1];
      };
      CHECK(run(Op::kAverage, 0) == 3);
      CHECK(run(Op::kMin, 0) == 2);
      CHECK(run(Op::kMax, 0) == 4);
      CHECK(run(Op::kProduct, 0) == 24);
      for (uint32_t root = 0; root < 3; ++root) CHECK(run(Op::kBroadcast, root) == static_cast<float>(root + 2));
    });
}

TEST_CASE("a fast rank never overtakes a slow one: rounds are kept apart") {
  Cluster cluster({.workers = 2, .partition_bytes = 4096});
  std::atomic<int> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Tensor<int64_t> tensor(cluster, rank, 3000, DType::kInt64, 0);
    for (uint32_t round = 0; round < 200; ++round) {
      FillWith(tensor, rank, round);
      if (rank == 1 && round % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      REQUIRE(tensor.Run(Op::kSum).ok());
      for (size_t i = 0; i < tensor.size(); ++i) wrong += tensor.data()[i] != SumOf<int64_t>(2, i, round);
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("bytes and frames on the links are what the protocol says") {
  constexpr size_t kBytes = 16 << 20;
  for (const char* scheme : {"inproc", "tcp"}) {
    CAPTURE(scheme);
    // A partition of 4 MiB in segments of 256 KiB, or of 240 KiB where they fill the sends of TCP.
    const size_t frames = std::string_view(scheme) == "tcp" ? 4 * 18 : 4 * 16;
    Cluster cluster({.workers = 2, .scheme = scheme, .segment_bytes = 1 << 18, .partition_bytes = 4 << 20});
    cluster.Everybody([&](uint32_t rank) {
      Tensor<float> tensor(cluster, rank, kBytes / 4, DType::kFloat32, 0);
      REQUIRE(tensor.Run(Op::kSum).ok());
      const LinkCounters counters = cluster.engine(rank).counters();
      CHECK(counters.payload_sent == kBytes);
      CHECK(counters.payload_received == kBytes);
      CHECK(counters.frames_sent == frames);
      CHECK(counters.bytes_sent - counters.payload_sent == 64 * frames);
      CHECK((counters.bytes_sent - counters.payload_sent) * 1000 < kBytes);
      CHECK(counters.bytes_received >= kBytes + 64 * frames);
    });
  }
}

TEST_CASE("a small partition goes in segments as short as they may be") {
  struct Case {
    uint32_t partition;
    size_t least, frames;
  };
  for (const Case& one : {Case{65536, 16384, 4},
                          {65536, 2048, 8},
                          {16384, 16384, 1},
                          {16384, 2048, 8},
                          {16384, 1024, 8},
                          {4096, 1024, 4},
                          {1000, 1024, 1}}) {
    CAPTURE(one.partition);
    CAPTURE(one.least);
    Cluster cluster({.segment_bytes = 1 << 17, .least_segment = one.least, .partition_bytes = one.partition});
    cluster.Everybody([&](uint32_t rank) {
      Tensor<float> tensor(cluster, rank, one.partition / 4, DType::kFloat32, 0);
      REQUIRE(tensor.Run(Op::kSum).ok());
      CHECK(cluster.engine(rank).counters().frames_sent == one.frames);
      CHECK(cluster.engine(rank).counters().frames_received == one.frames);
    });
  }
}

TEST_CASE("in shared memory no payload crosses the link") {
  Cluster cluster({.workers = 2, .scheme = "shm", .partition_bytes = 1 << 20});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, 1 << 20, DType::kFloat32, 0, true);
    REQUIRE(tensor.Run(Op::kSum).ok());
    CHECK(cluster.engine(rank).counters().payload_sent == 0);
    CHECK(cluster.engine(rank).counters().frames_sent == 1 + 4);  // where the memory is, and four partitions
  });
  CHECK(cluster.server(0).shards()[0]->stats().memory == 0);
}

TEST_CASE("in shared memory an operation is one frame to the server and one back, for each partition and rank") {
  constexpr uint32_t kRounds = 3;
  for (const uint32_t parts : {1u, 5u}) {
    Cluster cluster({.workers = 2, .scheme = "shm", .segment_bytes = 4096, .partition_bytes = 16384});
    cluster.Everybody([&](uint32_t rank) {
      Tensor<float> tensor(cluster, rank, parts * 4096, DType::kFloat32, 0, true);
      REQUIRE(tensor.Run(Op::kSum).ok());  // with it goes where the memory is
      for (uint32_t round = 0; round < kRounds; ++round) {
        const LinkCounters before = cluster.engine(rank).counters();
        REQUIRE(tensor.Run(Op::kSum).ok());
        const LinkCounters after = cluster.engine(rank).counters();
        CHECK(after.frames_sent - before.frames_sent == parts);
        CHECK(after.frames_received - before.frames_received == parts);
        CHECK(after.payload_sent + after.payload_received == 0);
      }
    });
  }
}

TEST_CASE("credit bounds what is in flight and everything still arrives") {
  Cluster cluster({.workers = 2, .credit_bytes = 5000, .partition_bytes = 4096});
  CHECK(WrongSums<int32_t>(cluster, DType::kInt32, 40000, 3, &Nobody) == 0);
}

TEST_CASE("ranks that push in opposite orders and have little credit, or room, don't wait for each other for ever") {
  for (const size_t bounces : {size_t{0}, size_t{80'000}}) {
    Cluster cluster({.workers = 2, .credit_bytes = 4096, .partition_bytes = 8192, .bounce_bytes = bounces});
    cluster.Everybody([&](uint32_t rank) {
      Tensor<int32_t> first(cluster, rank, 20000, DType::kInt32, 0), second(cluster, rank, 20000, DType::kInt32, 1000);
      FillWith(first, rank, 0);
      FillWith(second, rank, 1);
      Tensor<int32_t>* const order[] = {rank == 0 ? &first : &second, rank == 0 ? &second : &first};
      auto one = order[0]->Start(Op::kSum), other = order[1]->Start(Op::kSum);
      CHECK(cluster.engine(rank).Wait(**one, Clock::now() + std::chrono::seconds(10)).ok());
      CHECK(cluster.engine(rank).Wait(**other, Clock::now() + std::chrono::seconds(10)).ok());
      CHECK(first.data()[19999] == SumOf<int32_t>(2, 19999, 0));
      CHECK(second.data()[19999] == SumOf<int32_t>(2, 19999, 1));
    });
  }
}

TEST_CASE("8-bit floats are summed in fp32 and rounded once, and complex numbers multiplied") {
  Cluster cluster({.workers = 3});
  cluster.Everybody([&](uint32_t rank) {
    for (const bool shared : {false, true}) {
      Tensor<uint8_t> tensor(cluster, rank, 100, DType::kFloat8E4M3FN, shared ? 900 : 800, shared);
      std::fill_n(tensor.data(), 100, rank == 0 ? 0x58 : 0x42);  // 16 + 2.5 + 2.5 = 21: to even, 20; step by step 18
      REQUIRE(tensor.Run(Op::kSum).ok());
      CHECK(std::count(tensor.data(), tensor.data() + 100, 0x5A) == 100);
    }
    Tensor<float> factors(cluster, rank, 2 * 7, DType::kComplex64, 1000);
    for (size_t i = 0; i < 14; ++i) factors.data()[i] = i % 2 == 0 ? 1.0f : 2.0f;
    REQUIRE(factors.Run(Op::kProduct).ok());
    CHECK(factors.data()[12] == -11.0f);  // (1 + 2i)^3
    CHECK(factors.data()[13] == -2.0f);
    CHECK(factors.Run(Op::kMax).code() == Code::kInvalid);
  });
}

TEST_CASE("an operation on a tensor that is in flight is refused, and the first one still ends") {
  Cluster cluster({.workers = 2});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, 1000, DType::kFloat32, 0);
    auto first = tensor.Start(Op::kSum);
    if (rank == 0) {
      CHECK(tensor.Start(Op::kSum).status().code() == Code::kInvalid);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    CHECK(cluster.engine(rank).Wait(**first, Clock::now() + std::chrono::seconds(10)).ok());
  });
}

TEST_CASE("tensors that are retired are held no more, whatever became of their last round") {
  Cluster cluster({.workers = 2});
  cluster.Everybody([&](uint32_t rank) {
    Engine& engine = cluster.engine(rank);
    size_t most = 0;
    for (uint32_t number = 0; number < 200; ++number) {
      Tensor<float> tensor(cluster, rank, 3000, DType::kFloat32, 100 * number);
      FillWith(tensor, rank, number);
      REQUIRE(tensor.Run(Op::kSum).ok());
      CHECK(tensor.data()[2999] == SumOf<float>(2, 2999, number));
      engine.Retire(tensor.id());
      most = std::max(most, engine.tensors());
    }
    CHECK(most < 20);  // those before, which the I/O thread may not have come to
    Tensor<float> other(cluster, rank, 3000, DType::kFloat32, 100 * (1000 + rank));
    auto alone = other.Start(Op::kSum);
    engine.GiveUp(*alone, Status(Code::kClosed, "the ranks disagree"));
    CHECK(engine.Wait(**alone, Clock::now() + std::chrono::seconds(10)).code() == Code::kClosed);
    engine.Retire(other.id());
    const Deadline end = Clock::now() + std::chrono::seconds(10);
    while (engine.tensors() > 0 && Clock::now() < end) std::this_thread::yield();
    CHECK(engine.tensors() == 0);
  });
}

}  // namespace byteps_like::testing
