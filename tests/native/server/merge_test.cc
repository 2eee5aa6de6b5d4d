// Merged rounds at a server and from engine to engine: results that go out while contributions come in, broken links on
// both sides, disagreements, and every byte counted.
#include <doctest/doctest.h>

#include "csrc/base/log.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/server/merge_fixture.h"
#include "tests/native/server/raw_coder.h"

namespace byteps_like::testing {
namespace {

// One rank's tensor with a codec.
class MergedTensor {
 public:
  MergedTensor(Cluster& cluster, uint32_t rank, uint32_t numel, const std::string& spec, uint64_t key = 0)
      : engine_(cluster.engine(rank)) {
    const auto parts = cluster.Cut(uint64_t{numel} * 4, key);
    parts_ = static_cast<uint32_t>(parts.size());
    auto declared = engine_.DeclareCoded(parts, {CodecFor(spec, cluster.options().workers), spec});
    if (!declared.ok()) throw std::runtime_error(declared.status().message());
    id_ = *declared;
  }
  Status Sum(Floats& x) {
    auto operation =
        engine_.Submit({.tensor = id_, .address = reinterpret_cast<std::byte*>(x.data()), .last_part = parts_});
    if (!operation.ok()) return operation.status();
    return engine_.Wait(**operation, In(60));
  }

 private:
  Engine& engine_;
  uint32_t id_ = 0, parts_ = 0;
};

// The elements that are wrong after rounds of such gradients, over all ranks.
size_t WrongSums(Cluster& cluster, const std::string& spec, uint32_t numel, const std::vector<double>& shares,
                 uint64_t key = 0) {
  constexpr uint32_t kRounds = 3;
  std::atomic<size_t> wrong{0};
  cluster.Everybody([&](uint32_t rank) {
    MergedTensor tensor(cluster, rank, numel, spec, key);
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto xs = SparseRanks(numel, shares, round);
      Floats x = xs[rank];
      const Status status = tensor.Sum(x);
      if (!status.ok()) {
        MESSAGE(status.message());
        ++wrong;
        return cluster.engine(rank).Close();
      }
      wrong += x != DenseSum(xs);
    }
  });
  return wrong;
}

}  // namespace

TEST_CASE("merge: results are the codec's own, whatever the segments") {
  uint32_t seed = 0;
  for (const std::string spec : {kBlocks.c_str(), "blocksparse:block=7,dense=1", "coo"})
    for (const uint32_t numel : {1u, 300u, 20000u})
      for (const size_t segment : {size_t{7}, size_t{4096}}) {
        CAPTURE(spec);
        CAPTURE(numel);
        TestServer server(3);
        const auto codec = CodecFor(spec, 3);
        std::vector<RawCoder> coders;
        for (uint32_t rank = 0; rank < 3; ++rank) coders.emplace_back(server, rank, spec);
        for (uint32_t round = 0; round < 3; ++round) {
          const auto xs = SparseRanks(numel, {0.05, round == 1 ? 1.0 : 0.2, 0.0}, ++seed);
          const auto payloads = Encoded(*codec, xs, kKey, round);
          for (uint32_t rank = 0; rank < 3; ++rank)
            coders[rank].Push(payloads[rank], round, 0, payloads[rank].size(), segment);
          const Payload expected = Summed(*codec, numel, payloads, kKey, round);
          CHECK(Decoded(*codec, expected, numel) == DenseSum(xs));
          for (RawCoder& coder : coders) CHECK(coder.Pull(round) == expected);
        }
      }
}

TEST_CASE("merge: the result begins to leave before the last of the contributions has come") {
  constexpr uint32_t kNumel = 2000 * kBlock;
  TestServer server(2);
  const auto codec = CodecFor(kBlocks, 2);
  const auto payloads = Encoded(*codec, SparseRanks(kNumel, {0.3, 0.3}, 1), kKey, 0);
  const size_t size = payloads[1].size(), half = size / 2;
  RawCoder first(server, 0, kBlocks), second(server, 1, kBlocks);
  first.Push(payloads[0], 0);
  second.Push(payloads[1], 0, 0, half, 16 << 10);
  const Payload expected = Summed(*codec, kNumel, payloads, kKey, 0);
  const Payload early = first.Pull(0, {}, expected.size() / 3);  // in full, from half of what rank 1 has
  CHECK(early.size() >= expected.size() / 3);
  CHECK(server.stats().encoded == payloads[0].size());  // but nothing is finished
  CHECK(server.stats().open_rounds == 1);
  second.Push(payloads[1], 0, half, size, 16 << 10);
  CHECK(first.Pull(0, early) == expected);
  CHECK(second.Pull(0) == expected);
}

TEST_CASE("merge: nothing but zeros is one exchange of indexes") {
  constexpr uint32_t kNumel = 100 * kBlock;
  TestServer server(2);
  const auto codec = CodecFor(kBlocks, 2);
  const auto payloads = Encoded(*codec, SparseRanks(kNumel, {0, 0}, 1), kKey, 0);
  RawCoder first(server, 0, kBlocks), second(server, 1, kBlocks);
  first.Push(payloads[0], 0);
  second.Push(payloads[1], 0);
  for (RawCoder* coder : {&first, &second}) {
    const auto answer = coder->link().Receive();
    REQUIRE(answer.has_value());
    CHECK(answer->header.length == kPayloadHeader + 4 + 4 * 4);
    CHECK(answer->header.total == answer->header.length);
    CHECK(Decoded(*codec, answer->payload, kNumel) == Floats(kNumel));
  }
}

TEST_CASE("merge: links that break in the middle of payload and result are resumed, and all counts once") {
  constexpr uint32_t kNumel = 3000 * kBlock;
  TestServer server(2);
  const auto codec = CodecFor(kBlocks, 2);
  const auto payloads = Encoded(*codec, SparseRanks(kNumel, {0.3, 0.3}, 1), kKey, 0);
  const size_t size = payloads[0].size(), third = size / 3;
  const Payload expected = Summed(*codec, kNumel, payloads, kKey, 0);
  RawCoder second(server, 1, kBlocks);
  second.Push(payloads[1], 0);
  const size_t before = 2 * kBlocks.size() + payloads[1].size();
  Payload landed;
  {
    RawCoder first(server, 0, kBlocks);
    first.Push(payloads[0], 0, 0, third, 10000);
    landed = first.Pull(0, {}, expected.size() / 5);  // while two thirds have not been sent
    AwaitReceived(server, before + third);
  }
  REQUIRE(landed.size() > 0);
  {
    RawCoder first(server, 0, kBlocks);
    CHECK(first.Resume(0, size, landed.size()) == third);
    first.Push(payloads[0], 0, third - 5000, third + 3, 700);  // some of it again, and not to the end of a number
    landed = first.Pull(0, landed, expected.size() / 4);
    AwaitReceived(server, before + third + kBlocks.size() + 5003);
  }
  {
    RawCoder first(server, 0, kBlocks);
    CHECK(first.Resume(0, size, landed.size()) == third + 3);
    first.Push(payloads[0], 0, third + 3, size, 10000);
    CHECK(first.Pull(0, landed) == expected);
  }
  CHECK(second.Pull(0) == expected);
  CHECK(server.stats().encoded == payloads[0].size() + payloads[1].size());
  RawCoder first(server, 0, kBlocks);
  first.Push(payloads[0], 1);
  second.Push(payloads[1], 1);
  CHECK(first.Pull(1) == expected);
}

TEST_CASE("merge: who sends nonsense or disagrees is named at once, not at the end") {
  constexpr uint32_t kNumel = 1000 * kBlock;
  const auto error_of = [](const std::string& spec, uint32_t numel, auto change) {
    TestServer server(2);
    RawCoder good(server, 0, kBlocks), bad(server, 1, spec);
    good.Push(Encoded(*CodecFor(kBlocks, 2), SparseRanks(kNumel, {0.3}, 1), kKey, 0)[0], 0);
    while (server.stats().open_rounds == 0) std::this_thread::yield();
    Payload payload = Encoded(*CodecFor(spec, 2), SparseRanks(numel, {0.3}, 1), kKey, 0)[0];
    change(payload);
    bad.Push(payload, 0, 0, 1000, 1000);  // the index, and little more
    return good.link().ReceiveError();
  };
  const auto nothing = [](Payload&) {};
  CHECK(Contains(error_of(kBlocks, kNumel + 1, nothing),
                 "rank 1 sent 256001 elements encoded by " + kBlocks + ", but rank 0 sent 256000"));
  CHECK(Contains(error_of("coo", kNumel, nothing), "rank 1 sent sum encoded by coo, but rank 0 sent sum encoded by b"));
  const std::string nonsense = "key 7, round 0: rank 1 sent a payload that makes no sense: blocksparse: ";
  CHECK(error_of(kBlocks, kNumel, [](Payload& p) { p[kPayloadHeader] ^= std::byte{1}; }) ==
        nonsense + "its count is not its bitmap's");
  CHECK(error_of(kBlocks, kNumel, [](Payload& p) { p.resize(p.size() + 4); }) ==
        nonsense + "a payload of the wrong length");
  CHECK(error_of(kBlocks, kNumel, [](Payload& p) { p[kPayloadHeader + 4 + 127] |= std::byte{0x80}; }) ==
        nonsense + "bits set beyond the last block");
}

TEST_CASE("merge: memory is used again from round to round") {
  constexpr uint32_t kNumel = 500 * kBlock;
  TestServer server(2);
  const auto codec = CodecFor(kBlocks, 2);
  RawCoder first(server, 0, kBlocks), second(server, 1, kBlocks);
  const auto payloads = Encoded(*codec, SparseRanks(kNumel, {0.3, 0.2}, 1), kKey, 0);
  uint64_t memory = 0;
  for (uint32_t round = 0; round < 8; ++round) {
    first.Push(payloads[0], round);
    second.Push(payloads[1], round);
    CHECK(first.Pull(round).size() == second.Pull(round).size());
    if (round == 2) memory = server.stats().memory;
  }
  CHECK(server.stats().memory == memory);
}

TEST_CASE("merge: links cut, bits flipped and frames that come again leave the same sums") {
  std::atomic<int> broken{0};
  SetLogSink([&](LogLevel, std::string_view text) { broken += text.find("link lost") != text.npos; });
  for (const char* chaos :
       {"", "drop=0.01", "drop=0.05", "drop=0.2", "corrupt=0.05&delay_ms=0.2", "stall=0.02&stall_ms=3"})
    for (const char* scheme : {"tcp", "shm"}) {
      ClusterOptions options{.workers = 3, .servers = 2, .scheme = scheme, .chaos = chaos};
      options.segment_bytes = 512;
      CAPTURE(chaos);
      for (const char* spec : {kBlocks.c_str(), "coo"}) {
        options.seed += 1;
        Cluster cluster(options);
        CHECK(WrongSums(cluster, spec, 60 * kBlock + 5, {0.2, 0.1, 0.4}) == 0);
      }
    }
  SetLogSink(nullptr);
  CHECK(broken > 100);  // else this test proves little
}

TEST_CASE("merge: a rank of zeros, a dense one, and blocks fewer than segments") {
  for (const uint32_t numel : {1u, kBlock, 3 * kBlock + 1, 100 * kBlock}) {
    Cluster cluster({.workers = 3, .servers = 2, .shards = 2});
    CAPTURE(numel);
    CHECK(WrongSums(cluster, kBlocks, numel, {0, 1, 0.3}) == 0);
    CHECK(WrongSums(cluster, kBlocks, numel, {0, 0, 0}, 1000) == 0);
  }
}

// The rows of the specification's table: what each rank sends is at most its blocks, 1 % more and the bits; what it
// receives as much of the union; so neither is 3 % above the table, all frames counted.
TEST_CASE("merge: bytes of 4 MiB in blocks of 256, for all densities") {
  struct Row {
    uint32_t workers;
    double share, table_up, table_down;
    bool identical = false;
  };
  constexpr Row kRows[] = {{8, 1.0, 1.012, 1.012}, {8, 0.8, .812, 1.012}, {8, 0.4, .414, .997},
                           {8, 0.2, .215, .848},   {8, 0.1, .116, .587},  {8, 0.04, .056, .292},
                           {8, 0.01, .026, .093},  {2, 0.1, .115, .206},  {8, 0.1, .115, .115, true}};
  constexpr uint32_t kNumel = 1 << 20, kAllBlocks = kNumel / kBlock;
  for (const Row& row : kRows) {
    ClusterOptions options{.workers = row.workers};
    options.segment_bytes = kDefaultSegment;
    options.partition_bytes = 4 * kNumel;
    Cluster cluster(options);
    CAPTURE(row.workers);
    CAPTURE(row.share);
    std::vector<Floats> xs = SparseRanks(kNumel, std::vector<double>(row.workers, row.share), 3);
    if (row.identical) xs.assign(row.workers, xs[0]);
    const std::vector<bool> wanted = BlocksOf(xs);
    const Floats sum = DenseSum(xs);
    cluster.Everybody([&](uint32_t rank) {
      MergedTensor tensor(cluster, rank, kNumel, kBlocks);
      CHECK(tensor.Sum(xs[rank]).ok());
      CHECK(xs[rank] == sum);
    });
    const double dense = 4.0 * kNumel, bitmap = kAllBlocks / 8;
    const double most_down = static_cast<double>(std::count(wanted.begin(), wanted.end(), true)) / kAllBlocks;
    for (uint32_t rank = 0; rank < row.workers; ++rank) {
      const LinkCounters counters = cluster.engine(rank).counters();
      const auto up = static_cast<double>(counters.bytes_sent), down = static_cast<double>(counters.bytes_received);
      CHECK(up <= row.share * 1.01 * dense + bitmap);
      CHECK(down <= most_down * 1.01 * dense + bitmap);
      CHECK(up <= 1.03 * row.table_up * dense);
      CHECK(down <= 1.03 * row.table_down * dense);
    }
  }
}

}  // namespace byteps_like::testing
