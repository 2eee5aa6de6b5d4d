// Rounds that go on without ranks that are gone: what counts of them, what averages divide by, who is told what.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "server/shard.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/server/merge_fixture.h"
#include "tests/native/server/raw_coder.h"

namespace byteps_like::testing {
namespace {

const ShardWorld kElastic{.workers = {}, .elastic = true};
constexpr uint32_t kTotal = 8192;

std::vector<std::byte> Filled(size_t bytes, int32_t value) {
  std::vector<std::byte> payload(bytes);
  for (size_t at = 0; at < bytes; at += 4) std::memcpy(payload.data() + at, &value, 4);
  return payload;
}

void Push(RawLink& link, uint32_t rank, uint64_t key, uint32_t round, int32_t value, uint32_t begin = 0,
          uint32_t end = kTotal, Op op = Op::kSum) {
  Header header = PushHeader(rank, key, round, kTotal);
  header.op = op;
  header.offset = begin;
  header.length = end - begin;
  link.Send(header, Filled(end - begin, value));
}

// A whole result, and what was said of who is in it, in the order of the frames.
struct Heard {
  std::vector<int32_t> values;
  std::vector<Header> contributors;
};

Heard Hear(RawLink& link, uint64_t key, uint32_t round) {
  Heard heard;
  while (heard.values.size() < kTotal / 4) {
    const auto message = link.Receive();
    REQUIRE(message.has_value());
    if (message->header.type == FrameType::kContributors) {
      heard.contributors.push_back(message->header);
      continue;
    }
    REQUIRE(message->header.type == FrameType::kResult);
    REQUIRE(message->header.key == key);
    REQUIRE(message->header.round == round);
    const size_t before = heard.values.size();
    heard.values.resize(before + message->payload.size() / 4);
    std::memcpy(heard.values.data() + before, message->payload.data(), message->payload.size());
  }
  return heard;
}

// When it returns, the server has closed the link: what others send from now on comes after the death.
void Die(TestServer& server, RawLink& link) {
  (*server).LeaveOut(1, 0);
  while (link.Receive()) {
  }
}

bool Says(const Header& header, uint64_t key, uint32_t round, uint32_t rank, uint64_t bytes, uint32_t total) {
  return header.key == key && header.round == round && header.root == rank && header.offset == bytes &&
         header.total == total;
}
bool SaysGone(const Header& header, uint32_t rank) { return Says(header, 0, 0, rank, 0, 0); }

std::vector<int32_t> Values(int32_t before, int32_t after, uint32_t cut) {
  std::vector<int32_t> values(kTotal / 4, after);
  std::fill_n(values.begin(), cut / 4, before);
  return values;
}

}  // namespace

TEST_CASE("elastic: a sum has what was counted of a rank that died in the middle, and goes on without it") {
  for (const Op op : {Op::kSum, Op::kAverage, Op::kMax}) {
    TestServer server(3, 0, kElastic);
    RawLink dies = server.Connect(0), one = server.Connect(1), two = server.Connect(2);
    Push(dies, 0, 7, 0, 60, 0, 2048, op);
    Push(one, 1, 7, 0, 4, 0, kTotal, op);
    REQUIRE(server.HasReceived(2));
    Die(server, dies);
    Push(two, 2, 7, 0, 8, 0, kTotal, op);
    const auto expected = op == Op::kSum       ? Values(72, 12, 2048)
                          : op == Op::kAverage ? Values(24, 6, 2048)
                                               : Values(60, 8, 2048);
    for (RawLink* link : {&one, &two}) {
      const Heard heard = Hear(*link, 7, 0);
      CHECK(heard.values == expected);
      REQUIRE(heard.contributors.size() == 2);
      CHECK(Says(heard.contributors[0], 7, 0, 0, 2048, kTotal));
      CHECK(SaysGone(heard.contributors[1], 0));
    }
    Push(one, 1, 7, 1, 1, 0, kTotal, op);
    Push(two, 2, 7, 1, 5, 0, kTotal, op);
    for (RawLink* link : {&one, &two}) {
      const Heard heard = Hear(*link, 7, 1);
      CHECK(heard.values == Values(0, op == Op::kSum ? 6 : op == Op::kAverage ? 3 : 5, 0));
      CHECK(heard.contributors.empty());
    }
    CHECK(server.failures == 0);
  }
}

TEST_CASE("elastic: the part of a sum that has gone out before a death stays as it was") {
  TestServer server(2, 0, kElastic);
  RawLink dies = server.Connect(0), lives = server.Connect(1);
  Push(lives, 1, 7, 0, 4);
  Push(dies, 0, 7, 0, 60, 0, 4096);
  const auto early = lives.Receive();
  REQUIRE(early.has_value());
  CHECK(early->header.length == 4096);
  Die(server, dies);
  std::vector<std::byte> all = early->payload;
  for (int frame = 0; all.size() < kTotal && frame < 8; ++frame) {
    const auto more = lives.Receive();
    REQUIRE(more.has_value());
    if (more->header.type == FrameType::kResult) all.insert(all.end(), more->payload.begin(), more->payload.end());
  }
  auto expected = Filled(4096, 64), rest = Filled(4096, 4);
  expected.insert(expected.end(), rest.begin(), rest.end());
  CHECK(all == expected);
}

TEST_CASE("elastic: a rank that dies before its contribution, or after it, and is told from one that never came") {
  TestServer server(3, 0, kElastic);
  RawLink dies = server.Connect(0), one = server.Connect(1), two = server.Connect(2);
  Push(dies, 0, 7, 0, 10);  // whole
  Push(one, 1, 8, 0, 4);    // not begun by the others
  REQUIRE(server.HasReceived(2));
  Die(server, dies);
  Push(two, 2, 8, 0, 5);
  Push(one, 1, 7, 0, 1);
  Push(two, 2, 7, 0, 2);
  const Heard eight = Hear(one, 8, 0);
  CHECK(eight.values == Values(0, 9, 0));
  REQUIRE(eight.contributors.size() == 2);
  CHECK(Says(eight.contributors[0], 7, 0, 0, kTotal, kTotal));
  CHECK(SaysGone(eight.contributors[1], 0));
  CHECK(Hear(one, 7, 0).values == Values(0, 13, 0));
  CHECK(Hear(two, 8, 0).values == Values(0, 9, 0));
  CHECK(Hear(two, 7, 0).values == Values(0, 13, 0));
}

TEST_CASE("elastic: what a rank that is gone has shared is not looked at any more") {
  constexpr uint32_t kBytes = 1 << 20;
  TestServer server(3, 0, kElastic);
  const auto memory = Ones(kBytes), other = Ones(kBytes);
  RawLink dies = server.Connect(0), one = server.Connect(1), two = server.Connect(2);
  dies.Share(0, 0, *memory);
  one.Share(1, 0, *other);
  for (const uint32_t rank : {0u, 1u}) {
    Header header = PushHeader(rank, 7, 0, kBytes);
    header.flags = kByReference;
    header.length = 0;
    (rank == 0 ? dies : one).Send(header);
  }
  REQUIRE(server.HasReceived(4));
  Die(server, dies);
  std::fill_n(memory->data(), kBytes, std::byte{9});  // in other use by now
  Header header = PushHeader(2, 7, 0, kBytes);
  two.Send(header, Filled(kBytes, 5));
  std::optional<Message> message;
  do message = one.Receive();
  while (message && message->header.type != FrameType::kResult);
  REQUIRE(message.has_value());
  CHECK(reinterpret_cast<const int32_t*>(other->data())[kBytes / 4 - 1] == 6);
  CHECK(std::ranges::all_of(std::span(memory->data(), kBytes), [](std::byte one) { return one == std::byte{9}; }));
}

TEST_CASE("elastic: a broadcast of a dead rank names it, unless all of it has come; others' go on") {
  for (const bool whole : {false, true}) {
    TestServer server(3, 0, kElastic);
    RawLink dies = server.Connect(0), one = server.Connect(1), two = server.Connect(2);
    const auto begin = [&](RawLink& link, uint32_t rank, uint32_t root, uint32_t bytes) {
      Header header = PushHeader(rank, 7 + root, 0, kTotal);
      header.op = Op::kBroadcast;
      header.root = root;
      header.length = rank == root ? bytes : 0;
      link.Send(header, Filled(header.length, 3));
    };
    begin(dies, 0, 0, whole ? kTotal : 4096);
    begin(one, 1, 0, 0);
    REQUIRE(server.HasReceived(2));
    Die(server, dies);
    if (!whole) {
      const std::string error = two.ReceiveError();
      CHECK(Contains(error, "rank 0 is no longer in the job"));
      CHECK(Contains(error, "broadcast"));
      continue;
    }
    begin(two, 2, 0, 0);
    CHECK(Hear(one, 7, 0).values == Values(0, 3, 0));
    CHECK(Hear(two, 7, 0).values == Values(0, 3, 0));
    begin(one, 1, 1, kTotal);
    begin(two, 2, 1, 0);
    CHECK(Hear(two, 8, 0).values == Values(0, 3, 0));
    CHECK(server.failures == 0);
  }
}

TEST_CASE("elastic: a broadcast that begins after its root has died names it") {
  TestServer server(3, 0, kElastic);
  RawLink dies = server.Connect(0), one = server.Connect(1);
  Die(server, dies);
  Header header = PushHeader(1, 7, 0, kTotal);
  header.op = Op::kBroadcast;
  header.length = 0;
  one.Send(header);
  CHECK(Contains(one.ReceiveError(), "rank 0 is no longer in the job"));
}

TEST_CASE("elastic: a worker that says goodbye is waited for no more") {
  TestServer server(2, 0, kElastic);
  RawLink leaves = server.Connect(0), stays = server.Connect(1);
  Push(stays, 1, 7, 0, 4);
  Header goodbye;
  goodbye.type = FrameType::kGoodbye;
  goodbye.view = 1;
  goodbye.member = NumberOf(0);
  leaves.Send(goodbye);
  CHECK(Hear(stays, 7, 0).values == Values(0, 4, 0));
}

TEST_CASE("elastic: over a new link a survivor hears again who is gone, and what of it is in the open rounds") {
  TestServer server(3, 0, kElastic);
  RawLink dies = server.Connect(0), two = server.Connect(2);
  {
    RawLink before = server.Connect(1);
    Push(dies, 0, 7, 0, 60, 0, 2048);
    Push(before, 1, 7, 0, 4);
    REQUIRE(server.HasReceived(2));
    Die(server, dies);
    REQUIRE(before.Receive().has_value());
  }
  RawLink again = server.Connect(1);
  Header resume = PushHeader(1, 7, 0, kTotal);
  resume.type = FrameType::kResume;
  resume.length = 0;
  again.Send(resume);
  for (const bool general : {false, true}) {
    const auto message = again.Receive();
    REQUIRE(message.has_value());
    REQUIRE(message->header.type == FrameType::kContributors);
    CHECK((general ? SaysGone(message->header, 0) : Says(message->header, 7, 0, 0, 2048, kTotal)));
  }
  CHECK(again.Receive()->header.type == FrameType::kResumed);
  Push(two, 2, 7, 0, 8);
  CHECK(Hear(again, 7, 0).values == Values(72, 12, 2048));
}

TEST_CASE("elastic: keys are freed when all who live have forgotten them, whatever the dead had begun") {
  TestServer server(3, 0, kElastic);
  RawLink dies = server.Connect(0), one = server.Connect(1), two = server.Connect(2);
  const auto forget = [](RawLink& link, uint32_t rank, uint64_t key) {
    Header header = PushHeader(rank, key, 0, 0);
    header.type = FrameType::kForget;
    link.Send(header);
  };
  for (const uint64_t key : {7, 8}) {
    Push(one, 1, key, 0, 1);
    Push(two, 2, key, 0, 1);
    Push(dies, 0, key, 0, 1);
    for (RawLink* link : {&one, &two, &dies}) Hear(*link, key, 0);
  }
  forget(one, 1, 7);
  forget(two, 2, 7);
  Push(dies, 0, 8, 1, 1, 0, 4096);
  REQUIRE(server.HasReceived(9));
  CHECK(server.stats().keys == 2);
  Die(server, dies);
  CHECK(Becomes(server.stats().keys, 1));
  forget(one, 1, 8);
  forget(two, 2, 8);
  CHECK(Becomes(server.stats().keys, 0));
  CHECK(server.failures == 0);
}

TEST_CASE("elastic: payloads of codecs count whole or not at all") {
  for (const std::string spec : {"onebit:block=256", "qsgd:block=512,levels=7,norm=max,scale=own,seed=0"}) {
    for (const bool whole : {false, true}) {
      CAPTURE(spec);
      CAPTURE(whole);
      constexpr uint32_t kNumel = 5000;
      TestServer server(3, 0, kElastic);
      const auto codec = CodecFor(spec, 3);
      const std::vector<Floats> xs = {Gaussian(kNumel, 1), Gaussian(kNumel, 2), Gaussian(kNumel, 3)};
      const auto payloads = Encoded(*codec, xs, kKey, 0);
      RawCoder dies(server, 0, spec), one(server, 1, spec), two(server, 2, spec);
      const size_t size = payloads[0].size();
      dies.Push(payloads[0], 0, 0, whole ? size : size - 1, size);
      AwaitReceived(server, 3 * spec.size() + (whole ? size : size - 1));
      Die(server, dies.link());
      one.Push(payloads[1], 0);
      AwaitSummed(server, payloads[1].size() + (whole ? size : 0));  // floats are added in the order in which they come
      two.Push(payloads[2], 0);
      const auto counted = std::vector<Payload>(payloads.begin() + (whole ? 0 : 1), payloads.end());
      const Payload expected = Summed(*codec, kNumel, counted, kKey, 0);
      for (RawCoder* coder : {&one, &two}) {
        for (int frame = 0; frame < (whole ? 2 : 1); ++frame)
          CHECK(coder->link().Receive()->header.type == FrameType::kContributors);
        CHECK(coder->Pull(0) == expected);
      }
    }
  }
}

TEST_CASE("elastic: of a merged payload, what has come counts, and the rest as zeros") {
  constexpr uint32_t kNumel = 2000 * kBlock;
  const auto codec = CodecFor(kBlocks, 3);
  const auto xs = SparseRanks(kNumel, {0.5, 0.3, 0.3}, 1);
  const auto payloads = Encoded(*codec, xs, kKey, 0);
  const size_t size = payloads[0].size();
  for (const size_t come : {size_t{20}, size / 2, size}) {
    CAPTURE(come);
    TestServer server(3, 0, kElastic);
    RawCoder dies(server, 0, kBlocks), one(server, 1, kBlocks), two(server, 2, kBlocks);
    dies.Push(payloads[0], 0, 0, come, 16 << 10);
    AwaitReceived(server, 3 * kBlocks.size() + come);
    Die(server, dies.link());
    one.Push(payloads[1], 0);
    two.Push(payloads[2], 0);
    std::vector<Payload> results;
    for (RawCoder* coder : {&one, &two}) {
      for (int frame = 0; frame < (come > 20 ? 2 : 1); ++frame)
        CHECK(coder->link().Receive()->header.type == FrameType::kContributors);
      results.push_back(coder->Pull(0));
    }
    CHECK(results[0] == results[1]);
    const Floats sum = Decoded(*codec, results[0], kNumel), without = DenseSum({xs[1], xs[2]}), with = DenseSum(xs);
    size_t of_dead = 0;
    while (of_dead < kNumel && sum[of_dead] == with[of_dead]) ++of_dead;
    for (size_t i = of_dead; i < kNumel; ++i)
      if (sum[i] != without[i]) FAIL("element " << i << " has " << sum[i] << ", neither with nor without the dead");
    CHECK(of_dead >= (come == size ? kNumel : come == size / 2 ? kNumel / 3 : 0));
    CHECK(server.failures == 0);
  }
}

TEST_CASE("elastic: a round that survivors give up is freed, whether a dead rank had begun it or not") {
  for (const bool begun : {false, true}) {
    TestServer server(3, 0, kElastic);
    RawLink dies = server.Connect(0), one = server.Connect(1), two = server.Connect(2);
    Push(one, 1, 7, 0, 1);
    if (begun) Push(dies, 0, 7, 0, 1);
    REQUIRE(server.HasReceived(begun ? 2 : 1));
    Die(server, dies);
    Header forget = PushHeader(1, 7, 0, 0);
    forget.type = FrameType::kForget;
    one.Send(forget);
    CHECK(Becomes(server.stats().keys, 0));
    CHECK(server.stats().open_rounds == 0);
    Push(two, 2, 8, 0, 1);
    Push(one, 1, 8, 0, 1);
    Hear(two, 8, 0);
  }
}

TEST_CASE("elastic: a key that only the dead have begun is there for those who come later") {
  TestServer server(3, 0, kElastic);
  RawLink dies = server.Connect(0), one = server.Connect(1), two = server.Connect(2);
  Push(dies, 0, 7, 0, 10);
  REQUIRE(server.HasReceived(1));
  Die(server, dies);
  Push(one, 1, 7, 0, 1);
  Push(two, 2, 7, 0, 2);
  CHECK(Hear(one, 7, 0).values == Values(0, 13, 0));
}

TEST_CASE("elastic: where all who live are absent, those whose bytes they wait for are named") {
  TestServer server(2, 0, kElastic);
  RawLink dies = server.Connect(0), one = server.Connect(1);
  Header absent = PushHeader(1, 7, 0, kTotal);
  absent.flags = kAbsent;
  absent.length = 0;
  one.Send(absent);
  Push(dies, 0, 7, 0, 1, 0, 4096);
  REQUIRE(server.HasReceived(2));
  Die(server, dies);
  CHECK(Contains(one.ReceiveError(), "rank 0 are no longer in the job, and the others are absent"));
}

TEST_CASE("elastic: all leave in the middle of a round, and nothing has failed") {
  TestServer server(2, 0, kElastic);
  RawLink one = server.Connect(0), two = server.Connect(1);
  Push(one, 0, 7, 0, 1, 0, 4096);
  Push(two, 1, 7, 0, 1, 0, 4096);
  REQUIRE(server.HasReceived(2));
  Die(server, one);
  (*server).LeaveOut(1, 1);
  CHECK(Becomes(server.stats().keys, 0));
  CHECK(server.stats().open_rounds == 0);
  CHECK(server.failures == 0);
}

TEST_CASE("elastic: an average by a codec divides by those who are in it, also where no header counts them") {
  for (const std::string spec : {"fp16", "onebit:block=256", "fixed:bits=32,block=256"}) {
    CAPTURE(spec);
    constexpr size_t kCount = 4096;
    Cluster cluster({.workers = 4, .servers = 1, .elastic = true});
    cluster.Kill(0);
    cluster.server(0).LeaveOut(1, 0);
    cluster.Everybody([&](uint32_t rank) {
      if (rank == 0) return;
      Floats x(kCount, 12.0f);
      const auto parts = cluster.Cut(kCount * 4, 100);
      auto declared = cluster.engine(rank).DeclareCoded(parts, {CodecFor(spec, 4), spec});
      REQUIRE(declared.ok());
      auto operation = cluster.engine(rank).Submit({.tensor = *declared,
                                                    .address = reinterpret_cast<std::byte*>(x.data()),
                                                    .last_part = static_cast<uint32_t>(parts.size()),
                                                    .op = Op::kAverage});
      REQUIRE(operation.ok());
      REQUIRE(cluster.engine(rank).Wait(**operation, In(10)).ok());
      CHECK(x[7] == doctest::Approx(12.0).epsilon(0.001));
    });
  }
}

// Ranks die one after the other at random moments, over every transport, in private and in shared memory.
TEST_CASE("elastic: sums are those of their stated contributors, the same on all survivors") {
  constexpr size_t kCount = 40011;
  constexpr uint32_t kWorkers = 4;
  for (const char* scheme : {"inproc", "shm", "tcp"})
    for (auto* shared : {&Nobody, &All})
      for (uint64_t seed = 0; seed < 4; ++seed) {
        CAPTURE(scheme);
        CAPTURE(seed);
        Cluster cluster({.workers = kWorkers, .servers = 2, .scheme = scheme, .seed = seed, .elastic = true});
        std::array<std::vector<std::vector<int32_t>>, kWorkers> sums;
        std::array<std::atomic<uint32_t>, kWorkers> begun{};
        cluster.Everybody([&](uint32_t rank) {
          Tensor<int32_t> tensor(cluster, rank, kCount, DType::kInt32, 0, shared(rank));
          const uint32_t rounds = rank < 2 ? 3 + 4 * rank : 12;  // ranks 0 and 1 die
          for (uint32_t round = 0; round < rounds; ++round) {
            std::fill_n(tensor.data(), kCount, static_cast<int32_t>(1u << (8 * rank)));
            ++begun[rank];
            auto operation = tensor.Start(Op::kSum);
            REQUIRE(operation.ok());
            if (round + 1 == rounds && rank < 2) break;
            REQUIRE(cluster.engine(rank).Wait(**operation, In(30)).ok());
            sums[rank].emplace_back(tensor.data(), tensor.data() + kCount);
            const auto parts = cluster.Cut(kCount * 4, 0);
            for (size_t i = 0; i < kCount; ++i) {
              int32_t expected = 0x01010101;
              for (const Absence& one : (*operation)->absences) {
                const PartitionSpec& part = parts[one.key];
                if (i * 4 >= part.offset + one.bytes && i * 4 < part.offset + part.bytes)
                  expected -= 1 << (8 * one.rank);
              }
              if (tensor.data()[i] != expected) {
                FAIL("rank " << rank << ", round " << round << ", element " << i << ": " << tensor.data()[i]
                             << " instead of " << expected);
              }
            }
          }
          if (rank >= 2) return;
          std::this_thread::sleep_for(std::chrono::microseconds(seed * 100));
          cluster.Kill(rank);
          for (uint32_t server = 0; server < 2; ++server) cluster.server(server).LeaveOut(1, rank);
        });
        REQUIRE(sums[2].size() == 12);
        CHECK(sums[2] == sums[3]);
      }
}

}  // namespace byteps_like::testing
