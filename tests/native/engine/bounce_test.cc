// Private memory that goes to servers of the same host by way of shared memory: the places there, what crosses links.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>

#include "csrc/engine/bounce_buffers.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/server/raw_worker.h"
#include "tests/native/slow.h"

namespace byteps_like::testing {
namespace {

constexpr size_t kCapacity = 1 << 20;

struct Bounces : BounceBuffers {
  explicit Bounces(size_t capacity = kCapacity) : BounceBuffers(regions, capacity) {}
  static inline RegionTable regions;
};

bool IsFreeOfAll(const std::map<std::byte*, Bounce>& taken, const Bounce& one) {
  const auto next = taken.lower_bound(one.data);
  if (next != taken.end() && one.data + one.bytes > next->first) return false;
  return next == taken.begin() || std::prev(next)->second.data + std::prev(next)->second.bytes <= one.data;
}

// Of all ranks: the sums are right, and so many bytes of payload have crossed each link; the others were copied twice.
void CheckSums(const ClusterOptions& options, size_t count, int rounds, uint64_t payload) {
  Cluster cluster(options);
  std::atomic<size_t> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Tensor<int32_t> tensor(cluster, rank, count, DType::kInt32, 0);
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < count; ++i) tensor.data()[i] = static_cast<int32_t>(i * (rank + 1) + size_t(round));
      REQUIRE(tensor.Run(Op::kSum).ok());
      const auto workers = static_cast<size_t>(options.workers);
      for (size_t i = 0; i < count; ++i)
        wrong += tensor.data()[i] != static_cast<int32_t>(i * (workers * (workers + 1) / 2) + size_t(round) * workers);
    }
    CHECK(cluster.engine(rank).counters().payload_sent == payload);
    CHECK(cluster.engine(rank).counters().payload_received == payload);
    CHECK(cluster.engine(rank).bounced() == 2 * (uint64_t(rounds) * count * sizeof(int32_t) - payload));
  });
  CHECK(wrong == 0);
}

// A worker's engine whose only server is the test, over one link after the other.
class OwnServer {
 public:
  OwnServer() {
    auto listener = Listen(FreshUrl("shm"));
    REQUIRE(listener.ok());
    listener_ = std::move(*listener);
    EngineOptions options;
    options.credentials = credentials_;
    options.bounce_bytes = kCapacity;
    options.on_event = [](Code, const std::string&, bool) {};
    std::thread accept([this] { Accept(); });
    auto engine = Engine::Start(options, {{0, 0, {listener_->url()}}});
    accept.join();
    REQUIRE(engine.ok());
    engine_ = std::move(*engine);
  }

  Engine& engine() { return *engine_; }
  RawLink& link() { return *link_; }
  Header Next(FrameType type) {
    auto frame = link_->Receive();
    REQUIRE(frame.has_value());
    REQUIRE(frame->header.type == type);
    return frame->header;
  }
  void BreakLink() {
    link_->stream().Shutdown();
    Accept();
  }

 private:
  void Accept() {
    auto stream = listener_->Accept(In(5));
    if (stream.ok() && ServerHandshake(**stream, credentials_, In(5)).ok())
      link_ = std::make_unique<RawLink>(std::move(*stream));
  }

  const Credentials credentials_{"job", std::string(32, 's'), 1};
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<RawLink> link_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

TEST_CASE("bounces: places are aligned and apart from one another, and all of it is one place again in the end") {
  for (const uint32_t seed : {1u, 2u, 3u, 4u, 5u}) {
    Bounces bounces;
    REQUIRE(bounces.Serves(kCapacity / 2));
    std::mt19937 random(seed);
    std::map<std::byte*, Bounce> taken;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 2 == 0 && !taken.empty()) {
        auto one = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
        bounces.Give(one->second);
        taken.erase(one);
        continue;
      }
      const size_t bytes = 1 + random() % (1u << (10 + random() % 9));
      const Bounce one = bounces.Take(bytes);
      if (one.memory == nullptr) continue;
      CHECK(one.bytes >= bytes);
      CHECK(reinterpret_cast<uintptr_t>(one.data) % 64 == 0);
      CHECK(IsFreeOfAll(taken, one));
      taken.emplace(one.data, one);
    }
    for (auto& [data, one] : taken) bounces.Give(one);
    CHECK(bounces.Take(kCapacity).memory != nullptr);
    CHECK(bounces.Take(1).memory == nullptr);
  }
}

TEST_CASE("bounces: what is abandoned is not given out again, and what was beside it comes back to nobody") {
  Bounces bounces;
  REQUIRE(bounces.Serves(100));
  Bounce abandoned = bounces.Take(100), beside = bounces.Take(100);
  const auto before = beside.memory;
  bounces.Abandon(abandoned);
  CHECK(abandoned.memory == nullptr);
  CHECK(bounces.Take(1).memory == nullptr);
  REQUIRE(bounces.Serves(100));
  Bounce after = bounces.Take(kCapacity);
  CHECK(after.memory != nullptr);
  CHECK(after.memory != before);
  bounces.Give(beside);
  CHECK(bounces.Take(1).memory == nullptr);
  bounces.Give(after);
  bounces.Give(after);  // which is none now
  CHECK(bounces.Take(kCapacity).memory != nullptr);
}

TEST_CASE("bounces: no more are used at a time than the cache holds, but four however large they are") {
  constexpr size_t kCached = 4u << 20;
  for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20, size_t{2} << 20}) {
    Bounces bounces(16u << 20);
    REQUIRE(bounces.Serves(bytes));
    std::vector<Bounce> taken;
    for (Bounce one; (one = bounces.Take(bytes)).memory != nullptr;) taken.push_back(one);
    CHECK(taken.size() == std::max<size_t>(kCached / bytes, 4));
    bounces.Give(taken.back());
    taken.back() = bounces.Take(bytes);
    CHECK(taken.back().memory != nullptr);
    bounces.Abandon(taken.front());  // then all are given out from new memory
    REQUIRE(bounces.Serves(bytes));
    for (size_t i = 0; i < taken.size(); ++i) CHECK(bounces.Take(bytes).memory != nullptr);
  }
}

TEST_CASE("bounces: there are none of more than half of all, nor where there are to be none") {
  Bounces bounces, none(0);
  CHECK(bounces.Serves(kCapacity / 2));
  CHECK_FALSE(bounces.Serves(kCapacity / 2 + 1));
  CHECK_FALSE(none.Serves(1));
}

TEST_CASE("bounces: private tensors cross no link to servers of the same host, whatever waits for a place") {
  for (const char* scheme : {"inproc", "shm"})
    for (const uint32_t workers : {1u, 2u, 3u})
      for (const uint32_t partition : {4096u, 60'000u, 1u << 20})
        CheckSums({.workers = workers,
                   .servers = 1 + workers % 2,
                   .shards = 1 + workers / 2,
                   .scheme = scheme,
                   .partition_bytes = partition,
                   .lend_after = std::chrono::seconds(10),  // else what waits for a late rank is streamed
                   .bounce_bytes = 2 << 20},
                  kSlow > 1 ? 300'001 : 1'500'001, 3, 0);
}

TEST_CASE("bounces: partitions that are too large, and those of other hosts, are streamed") {
  constexpr size_t kCount = 100'000;
  CheckSums({.workers = 2, .scheme = "shm", .partition_bytes = 400'000, .bounce_bytes = 600'000}, kCount, 2,
            2 * 4 * kCount);
  CheckSums({.workers = 2, .scheme = "tcp", .bounce_bytes = kCapacity}, kCount, 2, 2 * 4 * kCount);
}

TEST_CASE("bounces: a broadcast brings what the root has") {
  Cluster cluster({.workers = 3, .scheme = "shm", .bounce_bytes = kCapacity});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, 50'000, DType::kFloat32, 0);
    for (uint32_t root = 0; root < 3; ++root) {
      std::fill_n(tensor.data(), tensor.size(), float(rank) + 1);
      REQUIRE(tensor.Run(Op::kBroadcast, root).ok());
      CHECK(std::count(tensor.data(), tensor.data() + tensor.size(), float(root) + 1) == 50'000);
    }
    CHECK(cluster.engine(rank).counters().payload_sent == 0);
  });
}

TEST_CASE("bounces: what was counted over a broken link is brought back from there, though it was streamed again") {
  for (const bool counted : {true, false}) {
    OwnServer server;
    std::vector<int32_t> data(1000, 1);
    const uint32_t tensor = server.engine().Declare(DType::kInt32, {{7, 0, 4000, 0}});
    auto operation = server.engine().Submit(
        {.tensor = tensor, .address = reinterpret_cast<std::byte*>(data.data()), .last_part = 1});
    REQUIRE(operation.ok());
    server.Next(FrameType::kRegion);
    auto memory = server.link().stream().TakeBuffer();
    REQUIRE(memory.ok());
    const Header push = server.Next(FrameType::kPush);
    CHECK(push.flags == kByReference);
    server.BreakLink();
    Header refusal = server.Next(FrameType::kRegion);
    refusal.offset = 0;
    refusal.total = 1;
    CHECK(server.Next(FrameType::kPush).offset == push.offset);
    server.link().Send(refusal);
    const auto again = server.link().Receive();
    REQUIRE(again.has_value());
    CHECK(again->header.flags == 0);
    CHECK(again->payload.size() == 4000);
    std::fill_n(reinterpret_cast<int32_t*>((*memory)->data() + push.offset), 1000, counted ? 2 : 5);
    Header result = again->header;
    result.type = FrameType::kResult;
    result.flags = counted ? uint8_t{kByReference} : uint8_t{0};
    result.length = counted ? 0 : 4000;
    const std::vector<int32_t> sum(1000, 2);
    const auto* const bytes = reinterpret_cast<const std::byte*>(sum.data());
    server.link().Send(result, counted ? Bytes() : Bytes(bytes, bytes + 4000));
    CHECK(server.engine().Wait(**operation, In(5)).ok());
    CHECK(data == sum);
  }
}

TEST_CASE("bounces: a refusal that comes before the first partition has all of them streamed") {
  OwnServer server;
  std::vector<int32_t> data(3000, 1);
  const uint32_t tensor =
      server.engine().Declare(DType::kInt32, {{7, 0, 4000, 0}, {8, 4000, 4000, 0}, {9, 8000, 4000, 0}});
  auto operation =
      server.engine().Submit({.tensor = tensor, .address = reinterpret_cast<std::byte*>(data.data()), .last_part = 3});
  REQUIRE(operation.ok());
  Header refusal = server.Next(FrameType::kRegion);
  refusal.offset = 0;
  refusal.total = 1;
  server.link().Send(refusal);
  for (int streamed = 0; streamed < 3;) {
    const auto frame = server.link().Receive();
    REQUIRE(frame.has_value());
    if (frame->header.flags == kByReference) continue;  // sent before the refusal was heard
    Header result = frame->header;
    result.type = FrameType::kResult;
    server.link().Send(result, Bytes(4000, std::byte{3}));
    ++streamed;
  }
  CHECK(server.engine().Wait(**operation, In(5)).ok());
  CHECK(std::count(data.begin(), data.end(), 0x03030303) == 3000);
}

}  // namespace byteps_like::testing
