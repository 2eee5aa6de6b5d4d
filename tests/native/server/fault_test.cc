// What goes wrong is said, to every rank, with its cause.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "tests/native/server/cluster_fixture.h"

namespace byteps_like::testing {
namespace {}  // namespace

TEST_CASE("ranks that disagree on the operation are told so, all of them") {
  Cluster cluster({.workers = 3});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, 1000, DType::kFloat32, 0);
    const Status status = tensor.Run(rank == 1 ? Op::kMax : Op::kSum);
    CHECK(status.code() == Code::kMismatch);
    CHECK(Contains(status.message(), "max of 4000 bytes of float32"));
    CHECK(Contains(status.message(), "sum of 4000 bytes of float32"));
  });
}

TEST_CASE("ranks that disagree on the size are told so, also those that have nothing to do with the tensor") {
  Cluster cluster({.workers = 3, .partition_bytes = 1 << 20});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> other(cluster, rank, 10, DType::kFloat32, 77);
    Tensor<float> tensor(cluster, rank, rank == 2 ? 1000 : 1001, DType::kFloat32, 0);
    const Status status = rank == 0 ? other.Run(Op::kSum) : tensor.Run(Op::kSum);
    CHECK(status.code() == Code::kMismatch);
    CHECK(Contains(status.message(), "key 0, round 0"));
    CHECK(tensor.Start(Op::kSum).status().code() == Code::kMismatch);
  });
}

TEST_CASE("a rank that never comes: a warning, then an error at the deadline, naming who waits for whom") {
  Cluster cluster({.workers = 3, .stall_warning = 0.2, .stall_timeout = 0.8});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, 1000, DType::kFloat32, 5);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1300));
      CHECK(tensor.Start(Op::kSum).status().code() == Code::kStalled);
      return;
    }
    const Deadline start = Clock::now();
    const Status status = tensor.Run(Op::kSum);
    CHECK(status.code() == Code::kStalled);
    CHECK(Contains(status.message(), "key 5, round 0: waiting for rank 1; have ranks 0, 2"));
    CHECK(Clock::now() - start < std::chrono::seconds(2));
  });
  bool warned = false;
  std::lock_guard lock(cluster.warnings_mutex);
  for (const std::string& text : cluster.warnings)
    warned |= Contains(text, "waiting for rank 1; have ranks 0, 2 for 0.");
  CHECK(warned);
}

// What ranks mean by a name is part of it: those who mean different things by it push different keys.
TEST_CASE("an operation that ranks give up ends there, its memory is left alone, and the next one is right") {
  for (const char* scheme : {"inproc", "shm", "tcp"})
    for (const int memory : {0, 1, 2}) {
      CAPTURE(scheme);
      CAPTURE(memory);
      const bool shared = memory == 1;
      Cluster cluster(
          {.workers = 3, .servers = 2, .scheme = scheme, .bounce_bytes = memory == 2 ? size_t{16} << 20 : 0});
      std::atomic<uint32_t> begun{0};
      cluster.Everybody([&](uint32_t rank) {
        Engine& engine = cluster.engine(rank);
        Tensor<int32_t> odd(cluster, rank, 20000, DType::kInt32, rank == 1 ? 200 : 100, shared);
        std::fill_n(odd.data(), odd.size(), 5);
        auto operation = odd.Start(Op::kSum);
        REQUIRE(operation.ok());
        ++begun;
        while (rank != 2 && begun < 3) std::this_thread::yield();
        engine.GiveUp(*operation, Status(Code::kClosed, "the ranks disagree"));
        const Status status = engine.Wait(**operation, Clock::now() + std::chrono::seconds(10));
        CHECK(status.code() == Code::kClosed);
        CHECK(status.message() == "the ranks disagree");
        engine.Retire(odd.id());
        std::fill_n(odd.data(), odd.size(), -1);
        Tensor<int32_t> next(cluster, rank, 20000, DType::kInt32, 300, shared);
        for (int32_t round = 1; round <= 3; ++round) {
          std::fill_n(next.data(), next.size(), round);
          REQUIRE(next.Run(Op::kSum).ok());
          CHECK(std::count(next.data(), next.data() + next.size(), 3 * round) == 20000);
        }
        CHECK(std::count(odd.data(), odd.data() + odd.size(), -1) == 20000);
      });
      for (uint32_t index = 0; index < 2; ++index) {
        const ShardStats& stats = cluster.server(index).shards()[0]->stats();
        const Deadline end = Clock::now() + std::chrono::seconds(5);
        while (stats.open_rounds > 0 && Clock::now() < end) std::this_thread::yield();
        CHECK(stats.open_rounds == 0);
        CHECK(stats.keys <= 3);  // of `next`: there are five partitions on two servers
      }
    }
}

TEST_CASE("an operation that is done can't be given up") {
  Cluster cluster({.workers = 1});
  Tensor<int32_t> tensor(cluster, 0, 100, DType::kInt32, 0);
  for (int round = 0; round < 2; ++round) {
    auto operation = tensor.Start(Op::kSum);
    REQUIRE(operation.ok());
    const Deadline end = Clock::now() + std::chrono::seconds(10);
    REQUIRE(cluster.engine(0).Wait(**operation, end).ok());
    cluster.engine(0).GiveUp(*operation, Status(Code::kClosed, "too late"));
    CHECK(cluster.engine(0).Wait(**operation, end).ok());
  }
  CHECK(tensor.Run(Op::kSum).ok());
}

TEST_CASE("a server that uses up its memory says so") {
  Cluster cluster({.workers = 2, .memory_limit = 100000});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, 100000, DType::kFloat32, 0);
    const Status status = tensor.Run(Op::kSum);
    CHECK(status.code() == Code::kCapacity);
    CHECK(Contains(status.message(), "server_memory_limit"));
  });
}

TEST_CASE("closing ends what is in flight") {
  Cluster cluster({.workers = 2});
  Tensor<float> tensor(cluster, 0, 1000, DType::kFloat32, 0);
  auto operation = tensor.Start(Op::kSum);
  REQUIRE(operation.ok());
  cluster.engine(0).Close();
  CHECK(cluster.engine(0).Wait(**operation, Clock::now() + std::chrono::seconds(5)).code() == Code::kClosed);
  CHECK(tensor.Start(Op::kSum).status().code() == Code::kClosed);
}

TEST_CASE("failing an engine from outside ends every wait with that error") {
  Cluster cluster({.workers = 2});
  Tensor<float> tensor(cluster, 0, 1000, DType::kFloat32, 0);
  auto operation = tensor.Start(Op::kSum);
  cluster.engine(0).Fail(Code::kPeerLost, "worker 1 died");
  const Status status = cluster.engine(0).Wait(**operation, Clock::now() + std::chrono::seconds(5));
  CHECK(status.code() == Code::kPeerLost);
  CHECK(status.message() == "worker 1 died");
}

}  // namespace byteps_like::testing
