// Racks: aggregators sum for their ranks, and pass on one contribution each to the servers that own the partitions.
// Against sums over plain arrays, and against jobs without racks.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <string>

#include "tests/native/server/cluster_fixture.h"
#include "tests/native/server/test_server.h"

namespace byteps_like::testing {
namespace {

// Ranks 0 and 3 in rack a, 1, 4 and 5 in rack b, and 2 by itself.
ClusterOptions TwoRacks() {
  ClusterOptions options;
  options.workers = 6;
  options.tells_all = true;
  options.racks = {{.name = "a", .ranks = {0, 3}}, {.name = "b", .ranks = {1, 4, 5}}};
  return options;
}

template <typename T>
T Value(uint32_t rank, uint32_t round, size_t i) {
  return static_cast<T>((rank * 1009 + round * 77 + i * 13) % 100);
}

// Over all ranks but the absent ones.
template <typename T>
T SumOf(uint32_t workers, uint32_t round, size_t i) {
  T sum = 0;
  for (uint32_t rank = 0; rank < workers; ++rank) sum = static_cast<T>(sum + Value<T>(rank, round, i));
  return sum;
}

template <typename T>
int WrongSums(Cluster& cluster, DType dtype, size_t count, uint32_t rounds, bool (*shared)(uint32_t),
              uint64_t first_key = 0) {
  std::atomic<int> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Tensor<T> tensor(cluster, rank, count, dtype, first_key, shared(rank));
    for (uint32_t round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < count; ++i) tensor.data()[i] = Value<T>(rank, round, i);
      const Status ran = tensor.Run(Op::kSum);
      if (!ran.ok()) MESSAGE(ran.message());
      wrong += !ran.ok();
      for (size_t i = 0; i < count; ++i) wrong += tensor.data()[i] != SumOf<T>(cluster.options().workers, round, i);
    }
  });
  return wrong;
}

bool Even(uint32_t rank) { return rank % 2 == 0; }

// A job of raw workers whose servers are real: 0 and 1 are in rack a, 2 is in none.
class RawTree {
 public:
  RawTree() {
    const Aggregator rack{"a", {0, 1}, ServerNumberOf(1), 1};
    ShardWorld above{1, NumbersOf(3)}, below{1, NumbersOf(3)};
    above.member = ServerNumberOf(0);
    above.aggregators = {rack};
    below.member = ServerNumberOf(1);
    below.server = 1;
    below.own = rack;
    servers_[0]->SetWorld(above);
    servers_[1]->SetWorld(below, {{0, 0, servers_[0]->urls(), ServerNumberOf(0)}}, 4096);
  }
  RawLink Connect(uint32_t rank) const {
    const uint32_t server = rank < 2 ? 1 : 0;
    return RawLink::Connect(servers_[server]->urls().front(), rank, server);
  }

 private:
  static std::unique_ptr<Server> Start() {
    Server::Options options;
    options.job = "job";
    options.secret = std::string(32, 's');
    options.urls = {FreshUrl("tcp")};
    auto started = Server::Start(std::move(options));
    if (!started.ok()) throw std::runtime_error(started.status().message());
    return std::move(*started);
  }
  const std::unique_ptr<Server> servers_[2] = {Start(), Start()};
};

}  // namespace

TEST_CASE("tree: sums of any number of racks, aggregators, owners and shards") {
  for (const char* scheme : {"inproc", "shm", "tcp"})
    for (uint32_t seed = 0; seed < 6; ++seed) {
      ClusterOptions options = TwoRacks();
      options.scheme = scheme;
      options.servers = 1 + seed % 3;
      options.shards = 1 + seed % 2;
      options.racks[0].aggregators = 1 + seed / 2;
      if (seed == 3) options.racks = {{.name = "all", .ranks = {0, 1, 2, 3, 4, 5}, .aggregators = 2}};
      if (seed == 4) options.racks.push_back({.name = "one", .ranks = {2}});
      options.credit_bytes = seed == 5 ? 20000 : 1 << 20;
      CAPTURE(scheme);
      CAPTURE(seed);
      Cluster cluster(options);
      CHECK(WrongSums<int32_t>(cluster, DType::kInt32, 20011, 4, seed % 2 == 0 ? &Nobody : &Even) == 0);
      CHECK(WrongSums<float>(cluster, DType::kFloat32, 3, 3, &All, 1000) == 0);
    }
}

TEST_CASE("tree: every dtype, and floats of 16 bits as far as they are exact") {
  Cluster cluster(TwoRacks());
  CHECK(WrongSums<double>(cluster, DType::kFloat64, 5003, 3, &Even) == 0);
  CHECK(WrongSums<int64_t>(cluster, DType::kInt64, 5003, 3, &Nobody, 300) == 0);
  CHECK(WrongSums<uint8_t>(cluster, DType::kUInt8, 50003, 3, &All, 400) == 0);
  CHECK(WrongSums<int8_t>(cluster, DType::kInt8, 3, 3, &Even, 500) == 0);
  CHECK(WrongSums<int16_t>(cluster, DType::kInt16, 5003, 2, &Even, 600) == 0);
  CHECK(WrongSums<uint64_t>(cluster, DType::kUInt64, 5003, 2, &Nobody, 700) == 0);
  for (const bool shared : {false, true})
    cluster.Everybody([&](uint32_t rank) {
      Tensor<uint16_t> tensor(cluster, rank, 9001, DType::kBFloat16, shared ? 2000 : 1000, shared);
      std::fill_n(tensor.data(), tensor.size(), uint16_t{0x3F80});  // 1
      REQUIRE(tensor.Run(Op::kSum).ok());
      CHECK(tensor.data()[9000] == 0x40C0);  // 6
    });
}

TEST_CASE("tree: a sum of floats is that of the racks' sums, to the last bit") {
  ClusterOptions options;
  options.workers = 4;
  options.racks = {{.name = "a", .ranks = {0, 1}}, {.name = "b", .ranks = {2, 3}}};
  Cluster cluster(options);
  constexpr size_t kCount = 5003;
  const auto value = [](uint32_t rank, size_t i) {
    return std::ldexp(1.0f + static_cast<float>(i % 7) * 0.1f, static_cast<int>(rank * 9));
  };
  std::atomic<int> differs{0}, wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, kCount, DType::kFloat32, 0);
    for (size_t i = 0; i < kCount; ++i) tensor.data()[i] = value(rank, i);
    REQUIRE(tensor.Run(Op::kSum).ok());
    for (size_t i = 0; i < kCount; ++i) {
      const float low = value(0, i) + value(1, i), high = value(2, i) + value(3, i);
      wrong += tensor.data()[i] != low + high;
      differs += low + high != ((value(0, i) + value(1, i)) + value(2, i)) + value(3, i);
    }
  });
  CHECK(wrong == 0);
  CHECK(differs > 0);  // the order can be told
}

TEST_CASE("tree: average, min, max, product and broadcast from anywhere") {
  ClusterOptions options = TwoRacks();
  options.servers = 2;
  Cluster cluster(options);
  for (const bool shared : {false, true})
    cluster.Everybody([&](uint32_t rank) {
      Tensor<float> tensor(cluster, rank, 9001, DType::kFloat32, shared ? 1000 : 0, shared && rank != 1);
      const auto run = [&](Op op, uint32_t root) {
        std::fill_n(tensor.data(), tensor.size(), static_cast<float>(rank + 2));
        REQUIRE(tensor.Run(op, root).ok());
        return tensor.data()[tensor.size() - 1];
      };
      CHECK(run(Op::kAverage, 0) == 4.5f);
      CHECK(run(Op::kMin, 0) == 2);
      CHECK(run(Op::kMax, 0) == 7);
      CHECK(run(Op::kProduct, 0) == 5040);
      for (uint32_t root = 0; root < 6; ++root) CHECK(run(Op::kBroadcast, root) == static_cast<float>(root + 2));
    });
}

TEST_CASE("tree: integers are divided as without racks") {
  for (const bool racks : {true, false}) {
    ClusterOptions options = TwoRacks();
    if (!racks) options.racks.clear();
    Cluster cluster(options);
    cluster.Everybody([&](uint32_t rank) {
      Tensor<int32_t> tensor(cluster, rank, 4099, DType::kInt32, 0);
      for (size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<int32_t>(i * (rank + 1)) - 3000;
      REQUIRE(tensor.Run(Op::kAverage).ok());
      int wrong = 0;
      for (size_t i = 0; i < tensor.size(); ++i)
        wrong += tensor.data()[i] != (static_cast<int32_t>(i) * 21 - 18000) / 6;  // towards zero
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("tree: absent ranks, of a rack in part and as a whole") {
  Cluster cluster(TwoRacks());
  cluster.Everybody([&](uint32_t rank) {
    std::vector<float> values(4096, static_cast<float>(rank));
    std::vector<PartitionSpec> parts = cluster.Cut(values.size() * sizeof(float), 0, rank);
    parts[0].absent = rank == 4 || rank == 0 || rank == 3;
    const uint32_t id = cluster.engine(rank).Declare(DType::kFloat32, parts);
    for (int round = 0; round < 3; ++round) {
      std::fill(values.begin(), values.end(), static_cast<float>(rank));
      Engine::Request request;
      request.tensor = id;
      request.address = reinterpret_cast<std::byte*>(values.data());
      request.last_part = static_cast<uint32_t>(parts.size());
      request.op = Op::kAverage;
      auto operation = cluster.engine(rank).Submit(request);
      REQUIRE(operation.ok());
      REQUIRE(cluster.engine(rank).Wait(**operation, In(20)).ok());
      const float expected = parts[0].absent ? static_cast<float>(rank) : (1.0f + 2 + 5) / 3;
      CHECK(values[0] == doctest::Approx(expected));
      CHECK(values.back() == doctest::Approx(expected));
    }
  });
}

TEST_CASE("tree: a rack's bytes go up once, and come down once") {
  Cluster cluster(TwoRacks());
  constexpr size_t kCount = 40000;
  CHECK(WrongSums<int32_t>(cluster, DType::kInt32, kCount, 3, &Nobody) == 0);
  constexpr uint64_t kBytes = 3 * kCount * sizeof(int32_t);
  const ShardStats& owner = cluster.server(0).shards()[0]->stats();
  CHECK(owner.payload_received == 3 * kBytes);  // two racks, and a rank by itself
  CHECK(Becomes(owner.payload_sent, 3 * kBytes));
  for (const uint32_t server : {1, 2}) {
    const ShardStats& aggregator = cluster.server(server).shards()[0]->stats();
    CHECK(aggregator.relayed_up == kBytes);
    CHECK(aggregator.relayed_down == kBytes);
    CHECK(aggregator.payload_received == (server == 1 ? 2 : 3) * kBytes);
    CHECK(aggregator.open_rounds == 0);
  }
}

TEST_CASE("tree: a segment goes all the way before the next one is sent") {
  RawTree tree;
  RawLink links[] = {tree.Connect(0), tree.Connect(1), tree.Connect(2)};
  constexpr uint32_t kHalf = 32768;
  for (const uint32_t offset : {0u, kHalf}) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Header push = PushHeader(rank, 7, 0, 2 * kHalf);
      push.op = Op::kSum;
      push.offset = offset;
      push.length = kHalf;
      if (rank < 2 && offset == 0) {
        Header names = PushHeader(rank, 7, 0, 0);
        names.type = FrameType::kOwner;
        links[rank].Send(names);  // shard 0 of server 0
      }
      std::vector<std::byte> payload(kHalf);
      std::fill_n(reinterpret_cast<int32_t*>(payload.data()), kHalf / 4, static_cast<int32_t>(rank + 1));
      links[rank].Send(push, payload);
    }
    for (RawLink& link : links) {
      for (uint32_t landed = 0; landed < kHalf;) {
        const auto result = link.Receive();
        REQUIRE(result.has_value());
        REQUIRE(result->header.type == FrameType::kResult);
        CHECK(result->header.offset == offset + landed);
        CHECK(reinterpret_cast<const int32_t*>(result->payload.data())[0] == 6);
        landed += result->header.length;
      }
    }
  }
}

TEST_CASE("tree: what belongs to owners is refused by an aggregator, and so is a key without an owner") {
  struct Case {
    FrameType type;
    const char* text;
  };
  for (const Case& one :
       {Case{FrameType::kSpec, "belongs on a link"}, Case{FrameType::kPush, "which server owns it"}}) {
    RawTree tree;
    RawLink links[] = {tree.Connect(0), tree.Connect(1)};
    for (const uint32_t rank : {0, 1}) {
      Header header = PushHeader(rank, 7, 0, 4);
      header.type = one.type;
      if (one.type == FrameType::kSpec) header.length = 0;
      links[rank].Send(header);
    }
    CHECK(links[0].ReceiveError().find(one.text) != std::string::npos);
  }
}

TEST_CASE("tree: on bad links, sums are exact") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    ClusterOptions options = TwoRacks();
    options.scheme = seed % 3 == 0 ? "tcp" : seed % 3 == 1 ? "inproc" : "shm";
    options.servers = 1 + seed % 2;
    options.chaos = seed % 4 == 0   ? "drop=0.003"
                    : seed % 4 == 1 ? "corrupt=0.003"
                    : seed % 4 == 2 ? "delay_ms=1"
                                    : "drop=0.002&corrupt=0.002&delay_ms=0.2";
    options.seed = seed;
    if (seed % 5 == 0) options.credit_bytes = 20000;
    CAPTURE(seed);
    Cluster cluster(options);
    CHECK(WrongSums<int32_t>(cluster, DType::kInt32, 9007, 3, seed % 2 == 0 ? &Nobody : &Even) == 0);
  }
}

TEST_CASE("tree: keys that all ranks have retired are freed everywhere") {
  Cluster cluster(TwoRacks());
  cluster.Everybody([&](uint32_t rank) {
    Tensor<int32_t> tensor(cluster, rank, 9000, DType::kInt32, 0), other(cluster, rank, 5, DType::kInt32, 1000);
    REQUIRE(tensor.Run(Op::kSum).ok());
    cluster.engine(rank).Retire(tensor.id());
    REQUIRE(other.Run(Op::kSum).ok());
  });
  for (uint32_t server = 0; server < 3; ++server) {
    CAPTURE(server);
    CHECK(Becomes(cluster.server(server).shards()[0]->stats().keys, 1));
  }
}

TEST_CASE("tree: a name that only one rack uses is given up and freed, too") {
  Cluster cluster(TwoRacks());
  for (const uint32_t rank : {0, 3}) {
    Tensor<int32_t> tensor(cluster, rank, 9000, DType::kInt32, 0);
    auto operation = tensor.Start(Op::kSum);
    REQUIRE(operation.ok());
    CHECK(Becomes(cluster.server(1).shards()[0]->stats().rounds, 3));
    cluster.engine(rank).GiveUp(*operation, Status(Code::kClosed, "no other rank comes"));
    CHECK(cluster.engine(rank).Wait(**operation, In(5)).code() == Code::kClosed);
    cluster.engine(rank).Retire(tensor.id());
  }
  for (const uint32_t server : {0, 1}) {
    CAPTURE(server);
    CHECK(Becomes(cluster.server(server).shards()[0]->stats().keys, 0));
  }
  CHECK(WrongSums<int32_t>(cluster, DType::kInt32, 900, 2, &Nobody, 5000) == 0);
}

TEST_CASE("tree: a rank that disagrees is named, by its rack where it comes by one") {
  struct Case {
    uint32_t odd;
    const char* text;
  };
  for (const Case& one : {Case{3, "rank 3 sent"}, Case{2, "rack "}}) {
    CAPTURE(one.odd);
    Cluster cluster(TwoRacks());
    cluster.Everybody([&](uint32_t rank) {
      Tensor<int32_t> tensor(cluster, rank, 100, DType::kInt32, 0);
      const Status status = tensor.Run(rank == one.odd ? Op::kMax : Op::kSum);
      CHECK(status.code() == Code::kMismatch);
      const std::string other = "rank " + std::to_string(one.odd);
      CHECK(
          (status.message().find(one.text) != std::string::npos || status.message().find(other) != std::string::npos));
    });
  }
}

TEST_CASE("tree: a rank that goes by itself, past its rack, is missed there") {
  ClusterOptions options = TwoRacks();
  options.stall_warning = 0.2;
  options.stall_timeout = 0.8;
  Cluster cluster(options);
  cluster.Everybody([&](uint32_t rank) {
    std::vector<int32_t> values(16, 1);
    const auto parts = cluster.Cut(64, 0, rank == 3 ? 2 : rank);  // as rank 2 does, which is in no rack
    const uint32_t id = cluster.engine(rank).Declare(DType::kInt32, parts);
    Engine::Request request;
    request.tensor = id;
    request.address = reinterpret_cast<std::byte*>(values.data());
    request.last_part = 1;
    auto operation = cluster.engine(rank).Submit(request);
    REQUIRE(operation.ok());
    const Status status = cluster.engine(rank).Wait(**operation, In(30));
    CHECK(status.code() == Code::kStalled);
    CHECK(status.message().find("waiting for rank 3; have rank 0") != std::string::npos);
  });
}

TEST_CASE("tree: a rank whose bytes come both ways counts once: the job fails") {
  Cluster cluster(TwoRacks());
  cluster.Everybody([&](uint32_t rank) {
    std::vector<int32_t> values(16, 1), again(16, 1);
    Status status;
    for (const bool directly : {false, true}) {
      if (directly && rank != 3) continue;
      Engine::Request request;
      request.tensor = cluster.engine(rank).Declare(DType::kInt32, cluster.Cut(64, 0, directly ? 2 : rank));
      request.address = reinterpret_cast<std::byte*>((directly ? again : values).data());
      request.last_part = 1;
      auto operation = cluster.engine(rank).Submit(request);
      status = operation.ok() ? cluster.engine(rank).Wait(**operation, In(rank == 3 && !directly ? 0.2 : 20))
                              : operation.status();
    }
    if (rank == 3) CHECK(!status.ok());
  });
}

TEST_CASE("tree: a stall names who is missing, in the rack and elsewhere") {
  for (const uint32_t missing : {3, 2}) {
    CAPTURE(missing);
    ClusterOptions options = TwoRacks();
    options.stall_warning = 0.2;
    options.stall_timeout = 0.8;
    Cluster cluster(options);
    cluster.Everybody([&](uint32_t rank) {
      if (rank == missing) return;
      Tensor<int32_t> tensor(cluster, rank, 100, DType::kInt32, 0);
      const Status status = tensor.Run(Op::kSum);
      CHECK(status.code() == Code::kStalled);
      CHECK(status.message().find("waiting for rank " + std::to_string(missing)) != std::string::npos);
    });
  }
}

TEST_CASE("tree: a rack of which nobody has come is named") {
  ClusterOptions options = TwoRacks();
  options.stall_warning = 0.2;
  options.stall_timeout = 0.8;
  Cluster cluster(options);
  cluster.Everybody([&](uint32_t rank) {
    if (rank == 0 || rank == 3) return;
    Tensor<int32_t> tensor(cluster, rank, 100, DType::kInt32, 0);
    const Status status = tensor.Run(Op::kSum);
    CHECK(status.code() == Code::kStalled);
    CHECK(status.message().find("waiting for rack a (ranks 0, 3)") != std::string::npos);
  });
}

TEST_CASE("tree: a rank that has left its rack is named at once") {
  Cluster cluster(TwoRacks());
  cluster.engine(3).Close();
  const Deadline begun = Clock::now();
  cluster.Everybody([&](uint32_t rank) {
    if (rank == 3) return;
    Tensor<int32_t> tensor(cluster, rank, 100, DType::kInt32, 0);
    const Status status = tensor.Run(Op::kSum);
    CHECK(status.code() == Code::kPeerLost);
    CHECK(status.message().find("rank 3") != std::string::npos);
  });
  CHECK(Clock::now() - begun < std::chrono::seconds(4));
}

TEST_CASE("tree: ranks that are done leave while others, in other racks, go on with what they have") {
  ClusterOptions options = TwoRacks();
  options.racks.pop_back();
  Cluster cluster(options);
  cluster.Everybody([&](uint32_t rank) {
    Tensor<int32_t> tensor(cluster, rank, 30000, DType::kInt32, 0);
    REQUIRE(tensor.Run(Op::kSum).ok());
    cluster.engine(rank).Close();
  });
}

TEST_CASE("tree: without an aggregator its ranks fail, and without the owner all do") {
  for (const uint32_t dead : {1, 0}) {
    CAPTURE(dead);
    ClusterOptions options = TwoRacks();
    options.scheme = "tcp";
    Cluster cluster(options);
    CHECK(WrongSums<int32_t>(cluster, DType::kInt32, 1000, 1, &Nobody) == 0);
    cluster.server(dead).Stop();
    cluster.Everybody([&](uint32_t rank) {
      Tensor<int32_t> tensor(cluster, rank, 1000, DType::kInt32, 1000);
      const Status status = tensor.Run(Op::kSum);
      CHECK(!status.ok());
      CAPTURE(status.message());
      CHECK(status.code() == Code::kPeerLost);
      CHECK(status.message().find("server " + std::to_string(dead)) != std::string::npos);
    });
  }
}

}  // namespace byteps_like::testing
