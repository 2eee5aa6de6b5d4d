// Both routes over rdma: sums by servers and all-reduces, exact to the bit, the byte and the frame.
#include "tests/native/collectives/executor_fixture.h"
#include "tests/native/rdma/rdma_fixture.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/transport/links/link_world.h"

namespace byteps_like::testing {
namespace {

constexpr size_t kSegment = 64u << 10;

float Value(uint32_t rank, size_t i, uint32_t round) { return static_cast<float>(i * 7 % 50 + rank * 3 + round % 5); }

// Fills, sums and checks; the number of wrong elements, or a message and 1.
size_t Round(Tensor<float>& tensor, uint32_t workers, uint32_t rank, uint32_t round) {
  for (size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = Value(rank, i, round);
  const Status status = tensor.Run(Op::kSum);
  if (!status.ok()) {
    MESSAGE(status.message());
    return 1;
  }
  size_t wrong = 0;
  for (size_t i = 0; i < tensor.size(); ++i) {
    float sum = 0;
    for (uint32_t other = 0; other < workers; ++other) sum += Value(other, i, round);
    wrong += tensor.data()[i] != sum;
  }
  return wrong;
}

}  // namespace

TEST_CASE("rdma: sums through two servers are exact, arenas and other memory") {
  if (NoRdma()) return;
  Cluster cluster({.workers = 3, .servers = 2, .shards = 2, .scheme = "rdma"});
  std::atomic<size_t> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> arena(cluster, rank, 100'003, DType::kFloat32, 0, true);
    Tensor<float> other(cluster, rank, 20'011, DType::kFloat32, 1000, rank == 1);
    for (uint32_t round = 0; round < 4; ++round) {
      wrong += Round(arena, 3, rank, round);
      wrong += Round(other, 3, rank, round);
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("rdma: bytes and frames of a push_pull are those of the protocol") {
  if (NoRdma()) return;
  constexpr size_t kBytes = 2u << 20;
  Cluster cluster({.workers = 2, .scheme = "rdma", .segment_bytes = kSegment, .partition_bytes = 1u << 20});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, kBytes / 4, DType::kFloat32, 0, true);
    CHECK(Round(tensor, 2, rank, 0) == 0);
    const LinkCounters counters = cluster.engine(rank).counters();
    CHECK(counters.payload_sent == kBytes);
    CHECK(counters.payload_received == kBytes);
    CHECK(counters.frames_sent == kBytes / kSegment);
    CHECK(cluster.engine(rank).links() == std::map<std::string, uint32_t>{{"rdma", 1}});
    CHECK(counters.bytes_sent - counters.payload_sent == 64 * counters.frames_sent);
  });
}

TEST_CASE("rdma: ring all-reduces are exact, and send the bytes of the ring's formula") {
  if (NoRdma()) return;
  for (const uint32_t n : {2u, 3u}) {
    constexpr uint64_t kCount = 90'000;
    LinkWorld world(n, "rdma");
    Reduction<float> reduction(n, {RingAllReduce, Cut(kCount, n), Op::kSum, true});
    CheckAllOk(LaunchAll(world, n, reduction), 30);
    reduction.Check();
    for (uint32_t rank = 0; rank < n; ++rank) {
      const uint64_t description = std::string("all_reduce").size();
      CHECK(world.counters(rank, (rank + 1) % n).payload_sent == 2 * (n - 1) * kCount * 4 / n + description);
    }
  }
}

}  // namespace byteps_like::testing
