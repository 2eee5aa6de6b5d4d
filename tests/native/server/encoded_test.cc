// Encoded rounds at a server, against direct calls of the codec: results, resumption, disagreements, nonsense, memory.
#include <doctest/doctest.h>

#include "tests/native/server/raw_coder.h"

namespace byteps_like::testing {
namespace {

const std::string kOnebit = "onebit:block=1024";

class Coder : public RawCoder {
 public:
  Coder(TestServer& server, uint32_t rank, const std::string& text = kOnebit) : RawCoder(server, rank, text) {}
};

std::vector<Floats> Gradients(uint32_t workers, size_t numel, uint32_t seed) {
  std::vector<Floats> xs;
  for (uint32_t rank = 0; rank < workers; ++rank) xs.push_back(Gaussian(numel, seed * 100 + rank));
  return xs;
}

// The result of each round at each rank is what direct calls give; sums of floats are made in the order of arrival,
// which is that of the ranks here.
void CheckRounds(const std::string& text, uint32_t workers, uint32_t numel, size_t segment) {
  const bool two_way = text.starts_with("twoway ");
  const CodecPointer codec = CodecFor(two_way ? text.substr(7) : text, workers);
  TestServer server(workers);
  std::vector<RawCoder> coders;
  for (uint32_t rank = 0; rank < workers; ++rank) coders.emplace_back(server, rank, text);
  Floats feedback(numel);
  uint64_t summed = 0;
  for (uint32_t round = 0; round < 4; ++round) {
    const auto payloads = Encoded(*codec, Gradients(workers, numel, round), kKey, round);
    for (uint32_t rank = 0; rank < workers; ++rank) {
      coders[rank].Push(payloads[rank], round, 0, payloads[rank].size(), segment);
      AwaitSummed(server, summed += payloads[rank].size());
    }
    const Payload expected = Summed(*codec, numel, payloads, kKey, round, two_way ? &feedback : nullptr);
    for (RawCoder& coder : coders) CHECK(coder.Pull(round) == expected);
  }
}

}  // namespace

TEST_CASE("encoded: results are what direct calls of the codec give, with the count of contributions") {
  for (const char* text :
       {"onebit:block=1024", "twoway onebit:block=64", "int:bits=4,block=256,rounding=stochastic,scale=shared,seed=0",
        "twoway int:bits=8,block=256,rounding=stochastic,scale=own,seed=0", "eden:bits=1,seed=0",
        "thc:bits=4,clamp=32,seed=0,table=auto"})
    for (const uint32_t workers : {1u, 3u})
      for (const uint32_t numel : {1u, 31u, 1000u, 33000u}) {
        CAPTURE(text);
        CAPTURE(numel);
        CheckRounds(text, workers, numel, numel == 1000 ? 7 : 64 << 10);  // segments split words and the header
      }
  const auto codec = CodecFor(kOnebit, 3);
  const auto payloads = Encoded(*codec, Gradients(3, 100, 0), kKey, 0);
  CHECK(DecodePayloadHeader(Summed(*codec, 100, payloads, kKey, 0))->count == 3);
}

TEST_CASE("encoded: segments that come again, overlap or come late count once") {
  TestServer server(2);
  const auto codec = CodecFor(kOnebit, 2);
  const auto payloads = Encoded(*codec, Gradients(2, 20000, 0), kKey, 0);
  const size_t size = payloads[0].size();
  Coder first(server, 0), second(server, 1);
  first.Push(payloads[0], 0, 0, 1000, 300);
  first.Push(payloads[0], 0, 0, 600, 300);     // both have been counted
  first.Push(payloads[0], 0, 900, 1700, 800);  // half of it has
  first.Push(payloads[0], 0, 1500, size, 1 << 20);
  AwaitSummed(server, size);
  first.Push(payloads[0], 0);  // all of it has
  second.Push(payloads[1], 0);
  const Payload expected = Summed(*codec, 20000, payloads, kKey, 0);
  CHECK(first.Pull(0) == expected);
  first.Push(payloads[0], 0);
  CHECK(second.Pull(0) == expected);
  first.Push(payloads[0], 1);
  second.Push(payloads[1], 1);
  CHECK(second.Pull(1) == expected);
  CHECK(server.stats().repeated == 600 + 2 * size);
  CHECK(server.stats().encoded == 4 * size);
  CHECK(server.stats().rounds == 2);
}

TEST_CASE("encoded: a link that breaks within a payload or a result is resumed, and counts once") {
  TestServer server(2);
  const auto codec = CodecFor(kOnebit, 2);
  const auto payloads = Encoded(*codec, Gradients(2, 200000, 0), kKey, 0);
  const size_t size = payloads[0].size();
  Coder second(server, 1);
  {
    Coder first(server, 0);
    first.Push(payloads[0], 0, 0, 8192, 4096);
    Header torn = EncodedHeader(0, kKey, 0, size);
    torn.offset = 8192;
    torn.length = 4096;
    first.link().Send(torn, Payload(4096), 100);
    AwaitReceived(server, 2 * kOnebit.size() + 8192);
  }
  Payload landed;
  {
    Coder first(server, 0);
    CHECK(first.Resume(0, size, 0) == 8192);
    first.Push(payloads[0], 0, 8192, size, 4096);
    AwaitSummed(server, size);
    second.Push(payloads[1], 0, 0, size, 4096);
    landed = first.Pull(0, {}, 12288);
  }
  const Payload expected = Summed(*codec, 200000, payloads, kKey, 0);
  REQUIRE(landed.size() == 12288);
  Coder first(server, 0);
  CHECK(first.Resume(0, size, landed.size()) == size);
  CHECK(first.Pull(0, landed) == expected);
  CHECK(second.Pull(0) == expected);
  CHECK(first.Resume(1, size, 0) == 0);
}

TEST_CASE("encoded: ranks that disagree fail the job, with both sides named") {
  const auto error_of = [](const std::string& text, uint32_t numel, Op op) {
    TestServer server(2);
    Coder first(server, 0), second(server, 1, text);
    const Payload mine = Encoded(*CodecFor(kOnebit, 2), Gradients(1, 1000, 0), kKey, 0)[0];
    first.Push(mine, 0);
    AwaitSummed(server, mine.size());
    const Payload other = Encoded(*CodecFor(text, 2), Gradients(1, numel, 0), kKey, 0)[0];
    Header header = EncodedHeader(1, kKey, 0, other.size());
    header.op = op;
    second.link().Send(header, other);
    return first.link().ReceiveError();
  };
  CHECK(error_of("onebit:block=64", 1000, Op::kSum) ==
        "key 7, round 0: the ranks disagree: rank 1 sent sum encoded by onebit:block=64, but rank 0 sent sum encoded "
        "by onebit:block=1024");
  CHECK(error_of(kOnebit, 1001, Op::kSum) ==
        "key 7, round 0: the ranks disagree: rank 1 sent 1001 elements encoded by onebit:block=1024, but rank 0 sent "
        "1000");
  CHECK(Contains(error_of(kOnebit, 1000, Op::kAverage), "rank 1 sent average encoded by onebit:block=1024, but rank"));
}

TEST_CASE("encoded: raw against encoded is a disagreement, too") {
  TestServer server(2);
  Coder coder(server, 0);
  coder.Push(Encoded(*CodecFor(kOnebit, 2), Gradients(1, 1000, 0), kKey, 0)[0], 0);
  while (server.stats().open_rounds == 0) std::this_thread::yield();
  RawLink raw = server.Connect(1);
  Header header = PushHeader(1, kKey, 0, 4000);
  header.dtype = DType::kFloat32;
  raw.Send(header);
  CHECK(Contains(raw.ReceiveError(),
                 "rank 1 sent sum of 4000 bytes of float32, but rank 0 sent sum encoded by onebit:block=1024"));
}

TEST_CASE("encoded: a payload that is none fails the job, and names the rank and what is wrong") {
  const auto error_after = [](Payload payload) {
    TestServer server(2);
    Coder good(server, 0), bad(server, 1);
    const Payload right = Encoded(*CodecFor(kOnebit, 2), Gradients(1, 1000, 0), kKey, 0)[0];
    good.Push(right, 0);
    AwaitSummed(server, right.size());
    bad.Push(payload, 0);
    const std::string error = good.link().ReceiveError();
    CHECK(Contains(error, "key 7, round 0: rank 1 sent a payload that makes no sense: "));
    return error;
  };
  const Payload right = Encoded(*CodecFor(kOnebit, 2), Gradients(1, 1000, 0), kKey, 0)[0];
  const auto with = [&right](size_t place, int value) {
    Payload payload = right;
    payload[place] = static_cast<std::byte>(value);
    return payload;
  };
  CHECK(Contains(error_after(with(0, 99)), "not made by onebit:block=1024"));
  CHECK(Contains(error_after(with(1, 9)), "version 9"));
  CHECK(Contains(error_after(with(2, 2)), "of 2 contributions"));
  CHECK(Contains(error_after(with(2, 0)), "of nothing"));
  CHECK(Contains(error_after(with(7, 0xFF)), "elements are too many"));
  CHECK(Contains(error_after(with(8, 0xAA)), "not made by onebit:block=1024"));
  CHECK(Contains(error_after(with(12, 1)), "last field"));
  CHECK(Contains(error_after(Payload(right.begin(), right.end() - 1)), "wrong length"));
  Payload longer = right;
  longer.resize(right.size() + 1);
  CHECK(Contains(error_after(longer), "are more than onebit:block=1024 makes of 1000 elements"));
  CHECK(Contains(error_after(Payload(17)), "version 0"));
}

TEST_CASE("encoded: what breaks the protocol is refused and named") {
  const auto error_after = [](const Header& header) {
    TestServer server(2);
    Coder coder(server, 0);
    coder.link().Send(header);
    const std::string error = coder.link().ReceiveError();
    CHECK(Contains(error, "rank 0"));
    return error;
  };
  Header header = EncodedHeader(0, kKey, 0, 400);
  const auto with = [&header](auto change) {
    Header changed = header;
    change(changed);
    return changed;
  };
  CHECK(Contains(error_after(with([](Header& h) { h.aux = 2; })), "not announced"));
  CHECK(Contains(error_after(with([](Header& h) { h.aux = 1u << 31; })), "not announced"));
  CHECK(Contains(error_after(with([](Header& h) { h.op = Op::kMax; })), "only sums and averages"));
  CHECK(Contains(error_after(with([](Header& h) { h.dtype = DType::kBFloat16; })), "only float32"));
  CHECK(Contains(error_after(with([](Header& h) { h.total = h.length = 16; })), "too short"));
  CHECK(Contains(error_after(with([](Header& h) { h.offset = 10, h.length = 10; })), "out of order"));
  CHECK(Contains(error_after(CodecHeader(0, kMaxCodecs, "")), "announces a codec with the invalid number 1024"));
}

// Of a round that nobody could have answered, of one whose result waits for its link, of one that it has let go: its
// memory may be another's by then.
TEST_CASE("encoded: who goes on has the result, all of it, and gets no more of it") {
  const std::string refused =
      "rank 0 broke the protocol: key 7: the rank begins a round without the result of the previous one";
  for (const char* text : {kOnebit.c_str(), "coo"}) {
    CAPTURE(text);
    const auto payloads = Encoded(*CodecFor(text, 2), Gradients(2, 1000, 0), kKey, 0);
    {
      TestServer server(2);
      Coder first(server, 0, text);
      first.Push(payloads[0], 0);
      first.Push(payloads[0], 1);
      CHECK(first.link().ReceiveError() == refused);
    }
    TestServer server(2);
    Coder first(server, 0, text), second(server, 1, text);
    for (const uint32_t round : {0u, 1u}) {
      first.Push(payloads[0], round);
      if (round == 1) first.Resume(0, payloads[0].size(), 0);
      second.Push(payloads[1], round);
      CHECK(!first.Pull(round).empty());
      CHECK((round == 1 || !second.Pull(round).empty()));
    }
  }
  TestServer server(1);
  Coder coder(server, 0, "coo");
  const auto payload = Encoded(*CodecFor("coo", 1), Gradients(1, 1 << 20, 0), kKey, 0)[0];
  coder.Push(payload, 0);
  AwaitSummed(server, payload.size());
  Header resume = EncodedHeader(0, kKey, 0, payload.size());  // without a new link, and nothing of it is read
  resume.type = FrameType::kResume;
  resume.length = 0;
  resume.offset = payload.size();
  coder.link().Send(resume);
  coder.Push(payload, 1, 0, 1000, 1000);
  CHECK(coder.link().ReceiveError() == refused);
}

TEST_CASE("encoded: a payload that changes its length in the middle is refused") {
  TestServer server(2);
  Coder coder(server, 0);
  const Payload right = Encoded(*CodecFor(kOnebit, 2), Gradients(1, 1000, 0), kKey, 0)[0];
  coder.Push(right, 0, 0, 32, 32);
  Payload longer = right;
  longer.resize(1 << 20);
  coder.Push(longer, 0, 32, longer.size(), 1 << 20);
  CHECK(Contains(coder.link().ReceiveError(), "rank 0 sent a payload that makes no sense: it has 1048576 bytes"));
}

TEST_CASE("encoded: a codec that servers can't sum is refused when it is announced") {
  const auto error_of = [](const std::string& text) {
    TestServer server(1);
    Coder coder(server, 0, text);
    return coder.link().ReceiveError();
  };
  CHECK(error_of("nonesuch:x=1") == "rank 0 announced a codec: there is no codec nonesuch");
  CHECK(Contains(error_of("onebit:block=33"), "block must be a multiple of 32"));
  CHECK(Contains(error_of("onebit:block=\xff\x01"), "not plain"));
  CHECK(Contains(error_of("bf16"), "its payloads are plain arrays"));
  CHECK(Contains(error_of("twoway thc:bits=4,clamp=32,seed=0,table=auto"), "needs no feedback at the server"));
  CHECK(Contains(error_of("twoway twoway onebit:block=32"), "there is no codec twoway onebit"));
}

TEST_CASE("encoded: memory is counted, kept and used again; over the limit the job fails") {
  const auto codec = CodecFor(kOnebit, 1);
  const auto payload = Encoded(*codec, Gradients(1, 100000, 0), kKey, 0)[0];
  {
    TestServer server(1);
    Coder coder(server, 0);
    const auto run = [&](uint32_t round) {
      for (uint64_t key = 0; key < 20; ++key) {
        coder.Push(payload, round, key);
        CHECK(coder.Pull(round, {}, 0, key).size() == payload.size());
      }
    };
    run(0);
    run(1);
    const uint64_t memory = server.stats().memory;
    CHECK(memory >= 400000 + 20 * payload.size());  // one accumulator, the last result of each key
    CHECK(memory <= (400000 + 22 * payload.size()) * 9 / 8);
    for (uint32_t round = 2; round < 6; ++round) run(round);
    CHECK(server.stats().memory == memory);
  }
  TestServer server(1, 300000);
  Coder coder(server, 0);
  coder.Push(payload, 0);
  CHECK(coder.link().ReceiveError() ==
        "key 7, round 0: server shard 0 needs more than its 300000 bytes of memory: raise server_memory_limit or add "
        "servers");
}

TEST_CASE("encoded: a key that all ranks forget gives its memory back") {
  TestServer server(1);
  Coder coder(server, 0, "twoway " + kOnebit);
  coder.Push(Encoded(*CodecFor(kOnebit, 1), Gradients(1, 1000, 0), kKey, 0)[0], 0);
  CHECK(!coder.Pull(0).empty());
  CHECK(server.stats().memory > 4000);
  Header forget;
  forget.type = FrameType::kForget;
  forget.view = 1;
  forget.member = NumberOf(0);
  forget.key = kKey;
  coder.link().Send(forget);
  coder.Resume(0, 100, 0);  // answered after that
  CHECK(server.stats().memory == 0);
  CHECK(server.stats().keys == 0);
}

TEST_CASE("encoded: raw rounds and encoded ones may take turns under one key") {
  TestServer server(2);
  const auto codec = CodecFor(kOnebit, 2);
  Coder first(server, 0), second(server, 1);
  for (uint32_t round = 0; round < 6; ++round) {
    if (round % 3 == 0) {
      for (uint32_t rank : {0u, 1u}) {
        Header header = PushHeader(rank, kKey, round, 4000);
        (rank == 0 ? first : second).link().Send(header);
      }
      for (Coder* coder : {&first, &second}) {
        const auto message = coder->link().Receive();
        REQUIRE(message.has_value());
        CHECK(message->header.flags == 0);
        CHECK(message->header.total == 4000);
      }
      continue;
    }
    const auto payloads = Encoded(*codec, Gradients(2, 1000, round), kKey, round);
    const uint64_t before = server.stats().encoded;
    first.Push(payloads[0], round);
    AwaitSummed(server, before + payloads[0].size());
    second.Push(payloads[1], round);
    const Payload expected = Summed(*codec, 1000, payloads, kKey, round);
    CHECK(first.Pull(round) == expected);
    CHECK(second.Pull(round) == expected);
  }
}

TEST_CASE("encoded: who waits for a payload that is not whole hears for whom") {
  TestServer server(2, 0, {.stall_warning = 0.1, .stall_timeout = 0.3});
  const auto payloads = Encoded(*CodecFor(kOnebit, 2), Gradients(2, 1000, 0), kKey, 0);
  Coder first(server, 0), second(server, 1);
  first.Push(payloads[0], 0);
  AwaitSummed(server, payloads[0].size());
  second.Push(payloads[1], 0, 0, 100, 100);
  CHECK(Contains(first.link().ReceiveError(), "key 7, round 0: waiting for rank 1; have rank 0"));
}

TEST_CASE("a prelude is called so in errors") {
  TestServer server(2);
  RawLink first = server.Connect(0), second = server.Connect(1);
  first.Send(PushHeader(0, uint64_t{1} << 63 | kKey, 0, 4));
  while (server.stats().open_rounds == 0) std::this_thread::yield();
  second.Send(PushHeader(1, uint64_t{1} << 63 | kKey, 0, 8));
  CHECK(Contains(first.ReceiveError(), "the prelude of key 7, round 0: the ranks disagree"));
}

}  // namespace byteps_like::testing
