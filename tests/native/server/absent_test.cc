// Rounds to which some ranks bring nothing and of which they want nothing: shares of what the ranks of a host have
// reduced among themselves.
#include <doctest/doctest.h>

#include <chrono>

#include "csrc/base/log.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/server/raw_server.h"
#include "tests/native/server/test_server.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kLocal = 2;  // ranks of a host: even and odd ones bring even and odd partitions

// One rank's memory, of which it brings the partitions of its place.
template <typename T>
class Shared {
 public:
  Shared(Cluster& cluster, uint32_t rank, size_t count, DType dtype, bool shared = false)
      : engine_(cluster.engine(rank)), parts_(cluster.Cut(count * sizeof(T), 100)) {
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].absent = i % kLocal != rank % kLocal;
    buffer_ = *SharedBuffer::Create(count * sizeof(T));
    if (shared) engine_.Register(buffer_);
    id_ = engine_.Declare(dtype, parts_);
  }

  T* data() { return reinterpret_cast<T*>(buffer_->data()); }
  bool Brings(size_t i) const { return !parts_[i * sizeof(T) / parts_[0].bytes].absent; }

  Status Run(Op op) {
    Engine::Request request;
    request.tensor = id_;
    request.address = buffer_->data();
    request.last_part = static_cast<uint32_t>(parts_.size());
    request.op = op;
    auto operation = engine_.Submit(request);
    if (!operation.ok()) return operation.status();
    return engine_.Wait(**operation, In(30));
  }

 private:
  Engine& engine_;
  std::vector<PartitionSpec> parts_;
  std::shared_ptr<SharedBuffer> buffer_;
  uint32_t id_ = 0;
};

int32_t Value(uint32_t rank, uint32_t round, size_t i) {
  return static_cast<int32_t>((rank + 1) * 1000 + round * 77 + i * 13 % 500);
}

// Elements that aren't the sum over the ranks that bring them, or, of the others, not as they were.
size_t WrongSums(Cluster& cluster, size_t count, uint32_t rounds, bool (*shared)(uint32_t)) {
  std::atomic<size_t> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    Shared<int32_t> tensor(cluster, rank, count, DType::kInt32, shared(rank));
    for (uint32_t round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < count; ++i) tensor.data()[i] = Value(rank, round, i);
      const Status status = tensor.Run(Op::kSum);
      if (!status.ok()) {
        MESSAGE(status.message());
        ++wrong;
        return cluster.engine(rank).Close();
      }
      for (size_t i = 0; i < count; ++i) {
        int32_t sum = 0;
        for (uint32_t other = rank % kLocal; other < cluster.options().workers; other += kLocal)
          sum += Value(other, round, i);
        wrong += tensor.data()[i] != (tensor.Brings(i) ? sum : Value(rank, round, i));
      }
    }
  });
  return wrong;
}

bool Half(uint32_t rank) { return rank < 2; }

Header Absent(uint32_t rank, uint64_t key, uint32_t round, uint32_t total) {
  Header header = PushHeader(rank, key, round, total);
  header.flags = kAbsent;
  header.length = 0;
  return header;
}

}  // namespace

TEST_CASE("sums of those that bring something are exact, over every transport and kind of memory") {
  for (const char* scheme : {"inproc", "shm", "tcp"})
    for (auto* shared : {&Nobody, &All, &Half}) {
      CAPTURE(scheme);
      Cluster cluster({.workers = 4, .servers = 2, .scheme = scheme});
      CHECK(WrongSums(cluster, 40011, 4, shared) == 0);
    }
}

TEST_CASE("averages are over those that bring something") {
  for (const bool shared : {false, true}) {
    Cluster cluster({.workers = 4, .scheme = "shm"});
    cluster.Everybody([&](uint32_t rank) {
      Shared<float> tensor(cluster, rank, 20000, DType::kFloat32, shared);
      std::fill_n(tensor.data(), 20000, static_cast<float>(rank));
      REQUIRE(tensor.Run(Op::kAverage).ok());
      const size_t own = rank % kLocal * cluster.options().partition_bytes / sizeof(float);
      CHECK(tensor.data()[own] == static_cast<float>(rank % kLocal + 1));  // of 0 and 2, of 1 and 3
    });
  }
}

TEST_CASE("each byte of a host crosses once: shares, and two frames a partition of the others'") {
  constexpr uint32_t kPartition = 1 << 20, kParts = 16;
  Cluster cluster({.workers = 4, .segment_bytes = 1 << 17, .partition_bytes = kPartition});
  cluster.Everybody([&](uint32_t rank) {
    Shared<float> tensor(cluster, rank, kParts * kPartition / 4, DType::kFloat32);
    REQUIRE(tensor.Run(Op::kSum).ok());
    const LinkCounters counters = cluster.engine(rank).counters();
    CHECK(counters.payload_sent == kParts / kLocal * kPartition);
    CHECK(counters.payload_received == kParts / kLocal * kPartition);
    CHECK(counters.frames_sent == kParts / kLocal * (kPartition >> 17) + kParts / kLocal);
  });
}

TEST_CASE("links that break: sums stay exact, nobody waits for ever") {
  std::atomic<int> broken{0};
  SetLogSink([&](LogLevel, std::string_view text) { broken += text.find("link lost") != text.npos; });
  size_t wrong = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Cluster cluster({.workers = 4,
                     .scheme = seed % 3 == 0   ? "tcp"
                               : seed % 3 == 1 ? "inproc"
                                               : "shm",
                     .chaos = seed % 2 == 0 ? "drop=0.01" : "corrupt=0.01",
                     .seed = seed,
                     .partition_bytes = 8192});
    wrong += WrongSums(cluster, 20011, 3, seed % 2 == 0 ? &Half : &Nobody);
  }
  SetLogSink(nullptr);
  CHECK(wrong == 0);
  CHECK(broken > 15);
}

TEST_CASE("little credit: words of absent ranks go before what others wait for") {
  Cluster cluster({.workers = 4, .credit_bytes = 4096, .partition_bytes = 8192});
  CHECK(WrongSums(cluster, 40000, 3, &Nobody) == 0);
}

TEST_CASE("an absent rank that doesn't come is named, and one that leaves") {
  TestServer server(2, 0, {.stall_warning = 0.1, .stall_timeout = 20});
  RawLink link = server.Connect(0), other = server.Connect(1);
  link.Send(PushHeader(0, 7, 0, 4096));
  const auto warning = link.Receive();
  REQUIRE(warning.has_value());
  CHECK(warning->header.type == FrameType::kWarning);
  Header goodbye;
  goodbye.type = FrameType::kGoodbye;
  goodbye.view = 1;
  goodbye.member = NumberOf(1);
  other.Send(goodbye);
  const std::string error = link.ReceiveError();
  CHECK(Contains(error, "key 7, round 0: waiting for rank 1; have rank 0"));
  CHECK(Contains(error, "rank 1 is no longer in the job"));
}

TEST_CASE("an absent rank is told once that the round is over, and again over a new link") {
  TestServer server(2);
  RawLink link = server.Connect(0);
  {
    RawLink gone = server.Connect(1);
    gone.Send(Absent(1, 7, 0, 4096));
    gone.Send(PushHeader(1, 8, 0, 4));  // its result says that all before it was handled
    link.Send(PushHeader(0, 8, 0, 4));
    REQUIRE(gone.Receive().has_value());
  }
  link.Send(PushHeader(0, 7, 0, 4096));
  REQUIRE(link.Receive().has_value());
  REQUIRE(link.Receive().has_value());
  RawLink again = server.Connect(1);
  again.Send(Absent(1, 7, 0, 4096));
  const auto over = again.Receive();
  REQUIRE(over.has_value());
  CHECK(over->header.type == FrameType::kResult);
  CHECK(over->header.flags == kAbsent);
  CHECK(over->header.total == 4096);
  CHECK(over->header.length == 0);
  again.Send(Absent(1, 7, 1, 4096));  // the round before is acknowledged by it
  link.Send(PushHeader(0, 7, 1, 4096));
  CHECK(link.Receive()->header.round == 1);
}

TEST_CASE("what absent ranks can't be") {
  TestServer server(2);
  RawLink link = server.Connect(0), other = server.Connect(1);
  SUBCASE("all of them") {
    link.Send(Absent(0, 7, 0, 4096));
    other.Send(Absent(1, 7, 0, 4096));
    CHECK(Contains(other.ReceiveError(), "no rank contributes: all are absent"));
  }
  SUBCASE("of another size") {
    link.Send(Absent(0, 7, 0, 4096));
    while (server.stats().open_rounds == 0) std::this_thread::yield();
    other.Send(PushHeader(1, 7, 0, 8192));
    CHECK(Contains(other.ReceiveError(), "but rank 0 sent sum of 4096 bytes"));
  }
  SUBCASE("both") {
    link.Send(Absent(0, 7, 0, 4096));
    link.Send(PushHeader(0, 7, 0, 4096));
    CHECK(Contains(other.ReceiveError(), "the rank is both absent and present in one round"));
  }
  SUBCASE("roots of a broadcast, or who gets it") {
    Header header = Absent(0, 7, 0, 4096);
    header.op = Op::kBroadcast;
    link.Send(header);
    CHECK(Contains(other.ReceiveError(), "absent from a broadcast"));
  }
}

TEST_CASE(
    "a server that takes a rank for absent, or not, ends the job: the rank would take what it has for the result") {
  RawServer server;
  Engine& engine = server.engine();
  bool absent = false;
  SUBCASE("absent") { absent = true; }
  SUBCASE("not absent") { absent = false; }
  std::vector<std::byte> memory(4096);
  engine.Declare(DType::kInt32, {{5, 0, 4096, 0, absent}});
  auto operation = engine.Submit({.address = memory.data(), .last_part = 1});
  REQUIRE(operation.ok());
  CHECK(server.link().Receive()->header.flags == (absent ? kAbsent : 0));
  Header wrong = absent ? PushHeader(0, 5, 0, 4096) : Absent(0, 5, 0, 4096);
  wrong.type = FrameType::kResult;
  server.link().Send(wrong);
  const Status status = engine.Wait(**operation, In(5));
  CHECK(status.code() == Code::kCorrupt);
  CHECK(Contains(status.message(), "key 5"));
}

TEST_CASE("an engine has no broadcast of a tensor that is others' in part") {
  Cluster cluster({.workers = 2});
  Shared<float> tensor(cluster, 0, 20000, DType::kFloat32);
  CHECK(tensor.Run(Op::kBroadcast).code() == Code::kInvalid);
}

}  // namespace byteps_like::testing
