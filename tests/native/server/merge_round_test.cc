// A merged round by itself: what of its result may be sent, segment by segment, in any order of arrival.
#include "server/rounds/merge_round.h"

#include <doctest/doctest.h>

#include "tests/native/server/merge_fixture.h"

namespace byteps_like::testing {
namespace {

// A round of these payloads, which come in pieces of any length. Keeps what might have been sent at once, as a link
// would: nothing of it may change later.
class Merging {
 public:
  Merging(const std::string& spec, std::vector<Payload> payloads)
      : codec_{spec, CodecFor(spec, static_cast<uint32_t>(payloads.size()))}, payloads_(std::move(payloads)) {
    codec_.crc = kernels::Crc32c(0, spec.data(), spec.size());
  }

  // The next `length` bytes of a rank's payload, or as many as there are.
  Status Push(uint32_t rank, size_t length) {
    const Header header = Next(rank, length);
    const Terms terms = TermsOf(header, &codec_);
    if (!round_.active()) round_.Begin(header, terms, PolicyFor(terms), seats_);
    Status reserved = round_.Reserve(header);
    if (!reserved.ok()) return reserved;
    const std::byte* const bytes = payloads_[rank].data() + header.offset;
    std::byte* const place = round_.Place(link_, header);
    if (place == nullptr) return Status(Code::kSystem, "there is no place");
    std::memcpy(place, bytes, header.length);
    Status landed = round_.Land(link_, header, place);
    if (!landed.ok()) return landed;
    auto more = round_.Advance();
    if (!more.ok()) return more.status();
    CHECK(*more == (round_.complete() > sent_.size()));
    sent_.insert(sent_.end(), round_.result() + sent_.size(), round_.result() + round_.complete());
    return {};
  }

  bool Has(uint32_t rank) { return round_.active() && round_.Has(rank); }
  MergeRound& round() { return round_; }
  const Payload& sent() const { return sent_; }
  const Codec& codec() const { return *codec_.codec; }
  uint64_t held() const { return held_; }

 private:
  Header Next(uint32_t rank, size_t length) {
    Header header;
    header.type = FrameType::kPush;
    header.flags = kEncoded;
    header.rank = rank;
    header.total = static_cast<uint32_t>(payloads_[rank].size());
    header.offset = round_.active() ? round_.of(rank).counted : 0;
    header.length = static_cast<uint32_t>(std::min(length, payloads_[rank].size() - header.offset));
    return header;
  }

  std::atomic<uint64_t> held_{0};
  ShardMemory memory_{"a test", 0, held_};
  ServerCodec codec_;
  std::vector<Payload> payloads_;
  const Seats seats_{static_cast<uint32_t>(payloads_.size())};
  MergeRound round_{0, memory_};
  NoLink link_;
  Payload sent_;
};

void CheckInAnyOrder(const std::string& spec, uint32_t numel, const std::vector<double>& shares, uint32_t seed) {
  const auto xs = SparseRanks(numel, shares, seed);
  const auto codec = CodecFor(spec, static_cast<uint32_t>(xs.size()));
  const auto payloads = Encoded(*codec, xs, 0, 0);
  Merging merging(spec, payloads);
  std::mt19937 random(seed);
  for (size_t left = xs.size(); left > 0;) {
    const uint32_t rank = random() % xs.size();
    if (merging.Has(rank)) continue;
    const Status pushed = merging.Push(rank, 1 + random() % 5000);
    REQUIRE_MESSAGE(pushed.ok(), pushed.message());
    left -= merging.Has(rank);
  }
  CHECK(merging.round().finished());
  CHECK(merging.sent() == Summed(*codec, numel, payloads, 0, 0));
  CHECK(Decoded(*codec, merging.sent(), numel) == DenseSum(xs));
}

}  // namespace

TEST_CASE("merge round: in any order of segments what may be sent grows, does not change, and is the sum") {
  const std::vector<std::vector<double>> worlds = {{0.3, 0.3, 0.3}, {0, 1, 0.3}, {0, 0, 0}, {0.7, 0.7, 0.75}, {0.1}};
  uint32_t seed = 0;
  for (const char* spec :
       {"blocksparse:block=256,dense=0.8", "blocksparse:block=7,dense=1", "blocksparse:block=100000,dense=0.8", "coo"})
    for (const uint32_t numel : {1u, 255u, 30 * kBlock, 200 * kBlock + 13})
      for (const auto& shares : worlds) {
        CAPTURE(spec);
        CAPTURE(numel);
        for (int turn = 0; turn < 3; ++turn) CheckInAnyOrder(spec, numel, shares, ++seed);
      }
}

TEST_CASE("merge round: the length is known with the last index, and values go out as soon as nobody adds to them") {
  constexpr uint32_t kNumel = 1024 * kBlock, kIndex = kPayloadHeader + 4 + 1024 / 8;
  const auto xs = SparseRanks(kNumel, {0.5, 0.5}, 7);
  const auto payloads = Encoded(*CodecFor(kBlocks, 2), xs, 0, 0);
  const std::vector<bool> wanted = BlocksOf(xs), last = BlocksOf({xs[1]});
  const auto blocks = static_cast<uint32_t>(std::count(wanted.begin(), wanted.end(), true));
  Merging merging(kBlocks, payloads);
  REQUIRE(merging.Push(0, payloads[0].size()).ok());
  REQUIRE(merging.Push(1, kIndex - 1).ok());
  CHECK(merging.round().total() == 0);
  REQUIRE(merging.Push(1, 1).ok());
  CHECK(merging.round().total() == kIndex + blocks * kBlock * 4);
  while (!merging.Has(1)) {
    REQUIRE(merging.Push(1, 4000).ok());  // not in whole blocks
    const size_t delivered = (merging.round().of(1).counted - kIndex) / (kBlock * 4);
    uint32_t ready = 0;  // blocks of the union before the first of rank 1 that has not come
    for (size_t block = 0, own = 0; block < wanted.size() && (!last[block] || own < delivered); ++block) {
      own += last[block];
      ready += wanted[block];
    }
    const size_t most = kIndex + size_t{ready} * kBlock * 4;
    CHECK(merging.sent().size() <= most);
    CHECK((merging.sent().size() == most || merging.sent().size() + (16 << 10) > most));
  }
  CHECK(merging.sent().size() == merging.round().total());
}

TEST_CASE("merge round: any bytes are refused or summed") {
  std::mt19937 random(5);
  int refused = 0;
  constexpr int kTurns = 600;
  for (int turn = 0; turn < kTurns; ++turn) {
    const char* const spec = turn % 2 == 0 ? "coo" : "blocksparse:block=16,dense=0.8";
    const uint32_t numel = 1 + random() % 700;
    auto payloads = Encoded(*CodecFor(spec, 2), SparseRanks(numel, {0.5, 0.3}, turn), 0, 0);
    Payload& bad = payloads[1];
    const uint32_t kind = random() % 3;
    if (kind == 0) bad.resize(kPayloadHeader + 1 + random() % (bad.size() + 40));
    if (kind == 1)
      bad[kPayloadHeader + random() % (bad.size() - kPayloadHeader)] ^= static_cast<std::byte>(1 + random() % 255);
    if (kind == 2)
      for (size_t i = kPayloadHeader; i < bad.size(); ++i) bad[i] = static_cast<std::byte>(random());
    Merging merging(spec, payloads);
    Status status = merging.Push(0, payloads[0].size());
    while (status.ok() && !merging.Has(1)) status = merging.Push(1, 1 + random() % 100);
    CHECK((status.ok() ? merging.round().finished() : status.code() == Code::kCorrupt));
    CHECK((status.ok() || status.message().find("rank 1") != std::string::npos));
    refused += !status.ok();
  }
  CHECK(refused > kTurns / 4);
  CHECK(refused < kTurns);
}

TEST_CASE("merge round: payloads are dropped as they are summed, the sum with the end of the result") {
  constexpr uint32_t kNumel = 400 * kBlock;
  const auto payloads = Encoded(*CodecFor(kBlocks, 3), SparseRanks(kNumel, {0.4, 0.4, 0.4}, 1), 0, 0);
  Merging merging(kBlocks, payloads);
  for (uint32_t rank = 0; rank < 3; ++rank) REQUIRE(merging.Push(rank, payloads[rank].size()).ok());
  merging.round().Release();
  const uint64_t sum = 4 * kNumel + 8 * 52;
  CHECK(merging.held() <= (sum + payloads[0].size() + merging.sent().size()) * 9 / 8);
}

}  // namespace byteps_like::testing
