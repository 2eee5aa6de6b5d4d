// A worker's channel: credit and priorities, and whose memory it is when the engine closes.
#include <doctest/doctest.h>

#include "tests/native/server/cluster_fixture.h"
#include "tests/native/server/raw_server.h"

namespace byteps_like::testing {

TEST_CASE("a partition that finds no credit does not hold up one of lower priority that has begun") {
  // The link takes 64 KiB at once and the rest slowly, so the first partition is on its way when the second comes.
  Cluster cluster({.workers = 2, .chaos = "rate=400000", .credit_bytes = 100000, .partition_bytes = 200000});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<int32_t> low(cluster, rank, 50000, DType::kInt32, 0), high(cluster, rank, 1000, DType::kInt32, 1);
    auto first = low.Start(Op::kSum);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    auto second = high.Start(Op::kSum, 0, 10);
    CHECK(cluster.engine(rank).Wait(**first, In(5)).ok());
    CHECK(cluster.engine(rank).Wait(**second, In(5)).ok());
  });
}

TEST_CASE("segments that no frame can carry, or that split elements, are made to fit") {
  for (const size_t segment : {size_t{100}, size_t{64} << 20}) {
    Cluster cluster({.workers = 2, .segment_bytes = segment, .partition_bytes = 20 << 20});
    cluster.Everybody([&](uint32_t rank) {
      Tensor<double> tensor(cluster, rank, segment == 100 ? 1000 : (20u << 20) / 8, DType::kFloat64, 0);
      CHECK(tensor.Run(Op::kSum, 0, 10).ok());
    });
  }
}

TEST_CASE("small partitions are sent in several segments too, but not in tiny ones") {
  Cluster cluster({.workers = 1, .segment_bytes = 256 << 10, .partition_bytes = 256 << 10});
  Tensor<float> small(cluster, 0, 256 << 8, DType::kFloat32, 0), tiny(cluster, 0, 20 << 8, DType::kFloat32, 1);
  CHECK(small.Run(Op::kSum).ok());
  CHECK(cluster.engine(0).counters().frames_sent == 8);
  CHECK(tiny.Run(Op::kSum).ok());
  CHECK(cluster.engine(0).counters().frames_sent == 8 + 2);
}

TEST_CASE("a broadcast from a rank that is not there is refused") {
  Cluster cluster({.workers = 2});
  Tensor<float> tensor(cluster, 0, 10, DType::kFloat32, 0);
  CHECK(tensor.Start(Op::kBroadcast, 2).status().code() == Code::kInvalid);
}

TEST_CASE("an operation does not succeed because its server fails without a reason") {
  for (const uint32_t number : {0u, 256u, 77u}) {
    RawServer server;
    Engine& engine = server.engine();
    std::vector<std::byte> memory(64);
    engine.Declare(DType::kUInt8, {{5, 0, 64, 0}});
    auto operation = engine.Submit({.address = memory.data(), .last_part = 1});
    REQUIRE(operation.ok());
    REQUIRE(server.link().Receive().has_value());
    Header error;
    error.type = FrameType::kError;
    error.view = 1;
    error.aux = number;
    server.link().Send(error);
    CHECK(engine.Wait(**operation, In(5)).code() == Code::kCorrupt);
    CHECK(engine.Submit({.address = memory.data(), .last_part = 1}).status().code() == Code::kCorrupt);
  }
}

TEST_CASE("when an operation has ended by Close its memory is not touched any more") {
  RawServer server;
  Engine& engine = server.engine();
  constexpr uint32_t kBytes = 8 << 20;  // more than the ring takes: the goodbye has to wait
  std::vector<std::byte> memory(kBytes, std::byte{1});
  engine.Declare(DType::kUInt8, {{5, 0, kBytes, 0}});
  auto operation = engine.Submit({.address = memory.data(), .last_part = 1});
  REQUIRE(operation.ok());
  REQUIRE(server.link().Receive().has_value());  // it has begun
  Header result = PushHeader(0, 5, 0, kBytes);
  result.type = FrameType::kResult;
  result.dtype = DType::kUInt8;
  result.length = 1000;
  server.link().Send(result, Bytes(1000, std::byte{9}), 500);
  std::thread closing([&] { engine.Close(); });
  CHECK(engine.Wait(**operation, In(5)).code() == Code::kClosed);
  const auto before = memory;
  try {
    server.link().SendRaw(Bytes(500, std::byte{9}));
  } catch (const std::runtime_error&) {  // closed: nothing can come to that memory
  }
  closing.join();
  CHECK(memory == before);
}

}  // namespace byteps_like::testing
