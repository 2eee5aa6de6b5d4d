// Memory that workers share with servers on their host: given back when its owner is gone, and sent where it can't be
// mapped.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/native/server/cluster_fixture.h"
#include "tests/native/server/test_server.h"

namespace byteps_like::testing {
namespace {

struct Held {
  size_t descriptors = 0, mappings = 0;
  bool operator<=(const Held& other) const { return descriptors <= other.descriptors && mappings <= other.mappings; }
};

// By this process, of shared memory.
Held HeldNow() {
  Held held;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    held.descriptors += std::filesystem::read_symlink(entry, gone).string().find("memfd:byteps_like") == 1;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) held.mappings += Contains(line, "memfd:byteps_like");
  return held;
}

// No descriptor is free in this process while this lives, whatever other threads close meanwhile: the limit is on
// numbers, and those below it are the standard streams'.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{STDERR_FILENO + 1, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

Header Region(uint32_t rank, uint32_t id, uint64_t bytes) {
  Header header;
  header.type = FrameType::kRegion;
  header.view = 1;
  header.member = NumberOf(rank);
  header.aux = id;
  header.offset = bytes;
  return header;
}

Header Reference(uint32_t rank, uint64_t key, uint32_t total) {
  Header header = PushHeader(rank, key, 0, total);
  header.aux = 3;
  header.flags = kByReference;
  header.length = 0;
  return header;
}

int32_t Last(const SharedBuffer& buffer) { return reinterpret_cast<const int32_t*>(buffer.data() + buffer.size())[-1]; }

}  // namespace

TEST_CASE("regions: memory that nobody owns any more is unmapped by the servers, too, and its descriptors are closed") {
  for (const std::string scheme : {"shm", "inproc"}) {
    CAPTURE(scheme);
    Cluster cluster({.workers = 2, .servers = 1, .shards = 2, .scheme = scheme});
    constexpr size_t kCount = 10000;
    Held first;
    for (uint64_t turn = 0; turn < 20; ++turn) {
      cluster.Everybody([&](uint32_t rank) {
        Tensor<int32_t> tensor(cluster, rank, kCount, DType::kInt32, 10 * turn, true);
        std::fill_n(tensor.data(), kCount, 1);
        CHECK(tensor.Run(Op::kSum).ok());
        CHECK(tensor.data()[kCount - 1] == 2);
      });
      if (turn == 0) first = HeldNow();
    }
    CHECK(cluster.server(0).shards()[0]->stats().referenced > 0);
    const Deadline end = In(5);
    while (Clock::now() < end && !(HeldNow() <= first)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(HeldNow().descriptors <= first.descriptors);
    CHECK(HeldNow().mappings <= first.mappings);
  }
}

TEST_CASE("regions: what a server without descriptors can't map is sent instead") {
  Cluster cluster({.workers = 2, .scheme = "shm"});
  constexpr size_t kCount = 10000;
  std::vector<std::unique_ptr<Tensor<int32_t>>> tensors;
  for (uint32_t rank = 0; rank < 2; ++rank)
    tensors.push_back(std::make_unique<Tensor<int32_t>>(cluster, rank, kCount, DType::kInt32, 0, true));
  const auto& stats = cluster.server(0).shards()[0]->stats();
  const NoDescriptors none;
  for (const Op op : {Op::kSum, Op::kBroadcast, Op::kSum}) {
    cluster.Everybody([&](uint32_t rank) {
      std::fill_n(tensors[rank]->data(), kCount, static_cast<int32_t>(rank + 1));
      CHECK(tensors[rank]->Run(op, 1, 10).ok());
      CHECK(tensors[rank]->data()[kCount - 1] == (op == Op::kSum ? 3 : 2));
    });
  }
  CHECK(stats.referenced == 0);
}

TEST_CASE("regions: private memory is sent, too, where a server can't map the engine's own") {
  Cluster cluster({.workers = 2, .servers = 2, .scheme = "shm", .partition_bytes = 4096, .bounce_bytes = 1 << 20});
  const auto run = [&](size_t count, uint64_t key) {
    cluster.Everybody([&](uint32_t rank) {
      Tensor<int32_t> tensor(cluster, rank, count, DType::kInt32, key);
      for (int32_t round = 0; round < 3; ++round) {
        std::fill_n(tensor.data(), count, static_cast<int32_t>(rank) + round);
        CHECK(tensor.Run(Op::kSum, 0, 10).ok());
        CHECK(std::count(tensor.data(), tensor.data() + count, 1 + 2 * round) == std::ptrdiff_t(count));
      }
    });
  };
  run(1024, 0);  // by the first server alone
  const auto& stats = cluster.server(1).shards()[0]->stats();
  const NoDescriptors none;
  run(20 * 1024, 100);
  CHECK(stats.referenced == 0);
  CHECK(stats.payload_received == uint64_t{2} * 3 * 10 * 4096);
}

TEST_CASE("regions: a worker that is told so says again what it has said of them, and no more") {
  TestServer server(2);
  RawLink link = server.Connect(0), other = server.Connect(1);
  const auto mine = Ones(4096);
  {
    const NoDescriptors none;
    link.Share(0, 3, *mine);
    link.Send(Reference(0, 7, 4096));  // before it hears
    REQUIRE(server.HasReceived(2));
  }
  const auto answer = link.Receive();
  REQUIRE(answer.has_value());
  CHECK(answer->header.type == FrameType::kRegion);
  CHECK(answer->header.aux == 3);
  CHECK(answer->header.offset == 0);
  CHECK(answer->header.total == 1);
  other.Send(PushHeader(1, 7, 0, 4096));
  link.Send(PushHeader(0, 7, 0, 4096), Bytes(4096, std::byte{1}));
  for (RawLink* one : {&link, &other}) {
    const auto result = one->Receive();
    REQUIRE(result.has_value());
    CHECK(result->header.flags == 0);
    CHECK(result->payload == Bytes(4096, std::byte{1}));
  }
}

TEST_CASE("regions: a round keeps memory that is taken back before it is finished") {
  TestServer server(2);
  RawLink link = server.Connect(0), other = server.Connect(1);
  const auto mine = Ones(1 << 20), theirs = Ones(1 << 20);
  link.Share(0, 3, *mine);
  link.Send(Reference(0, 7, 1 << 20));
  link.Send(Region(0, 3, 0));
  link.Send(PushHeader(0, 8, 0, 4));
  other.Send(PushHeader(1, 8, 0, 4));
  REQUIRE(link.Receive().has_value());  // all before it was handled
  other.Share(1, 3, *theirs);
  other.Send(Reference(1, 7, 1 << 20));
  REQUIRE(link.Receive().has_value());
  CHECK(Last(*mine) == 2);
  CHECK(Last(*theirs) == 2);
  link.Send(Reference(0, 9, 4096));
  CHECK(Contains(link.ReceiveError(), "not shared"));
}

TEST_CASE("regions: what was counted where it lies is answered there when a new link can't share it") {
  TestServer server(2);
  const auto mine = Ones(1 << 20);
  RawLink other = server.Connect(1);
  {
    RawLink link = server.Connect(0);
    link.Share(0, 3, *mine);
    link.Send(Reference(0, 7, 1 << 20));
    link.Send(PushHeader(0, 8, 0, 4));
    other.Send(PushHeader(1, 8, 0, 4));
    REQUIRE(link.Receive().has_value());
  }
  RawLink again = server.Connect(0);
  again.Send(PushHeader(0, 8, 1, 4));
  other.Send(PushHeader(1, 8, 1, 4));
  REQUIRE(again.Receive().has_value());  // the server has closed the descriptors of the link before
  {
    const NoDescriptors none;
    again.Share(0, 3, *mine);
    again.Send(Reference(0, 7, 1 << 20));
    REQUIRE(server.HasReceived(8));
  }
  const auto refused = again.Receive();
  REQUIRE(refused.has_value());
  REQUIRE(refused->header.type == FrameType::kRegion);
  again.Send(PushHeader(0, 7, 0, 1 << 20));
  Bytes ones(1 << 20);
  for (size_t i = 0; i < ones.size(); i += 4) ones[i] = std::byte{1};
  other.Send(PushHeader(1, 7, 0, 1 << 20), ones);
  const auto result = again.Receive();
  REQUIRE(result.has_value());
  CHECK(result->header.type == FrameType::kResult);
  CHECK(result->header.flags == kByReference);
  CHECK(Last(*mine) == 2);
}

}  // namespace byteps_like::testing
