// What goes wrong is said, to every rank, with its cause.
#include <doctest/doctest.h>

#include <chrono>

#include "tests/native/cluster_fixture.h"

namespace byteps_like::testing {
namespace {

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

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
