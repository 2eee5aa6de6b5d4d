// An encoded round by itself: payloads of changing length, and what a two-way codec leaves out.
#include "server/rounds/encoded_round.h"

#include <doctest/doctest.h>

#include <cmath>

#include "server/policy/feedback.h"
#include "tests/native/server/encoded_fixture.h"

namespace byteps_like::testing {
namespace {

// A payload is a list of bytes, the sum all of them, in order of arrival.
class Lists final : public Codec {
 public:
  explicit Lists(uint32_t world) : Codec("lists", world) {}
  uint8_t id() const override { return 200; }
  Trait trait() const override { return Trait::kWidening; }
  CodecPlan Plan(uint32_t numel) const override {
    return {.payload = numel, .result = numel * world(), .dense = {}, .accumulator = 8 + uint64_t{numel} * world()};
  }
  uint32_t Encode(std::span<const float>, const Draw&, const std::byte*, std::byte*, std::byte*) const override {
    return 0;
  }
  void Residual(std::span<const float>, const Draw&, const std::byte*, std::byte*, byteps_like::Bytes,
                float*) const override {}
  Status Decode(byteps_like::Bytes, uint32_t, const Draw&, const std::byte*, std::byte*, float,
                std::span<float>) const override {
    return {};
  }
  void Reset(uint32_t, std::byte* sum) const override { std::memset(sum, 0, 8); }
  Status Accumulate(uint32_t, byteps_like::Bytes payload, std::byte*, std::byte* sum) const override {
    uint64_t length;
    std::memcpy(&length, sum, 8);
    std::memcpy(sum + 8 + length, payload.data(), payload.size());
    length += payload.size();
    std::memcpy(sum, &length, 8);
    return {};
  }
  uint32_t Emit(uint32_t, uint32_t, const Draw&, std::byte*, std::byte* sum, std::byte* result) const override {
    uint64_t length;
    std::memcpy(&length, sum, 8);
    std::memcpy(result, sum + 8, length);
    return static_cast<uint32_t>(length);
  }
};

ServerCodec CodecOf(CodecPointer codec, bool two_way = false) {
  const std::string& spec = codec->spec();
  return {spec, codec, two_way, kernels::Crc32c(0, spec.data(), spec.size())};
}

Header HeaderOf(uint32_t rank, uint32_t round, size_t total) {
  Header header;
  header.type = FrameType::kPush;
  header.flags = kEncoded;
  header.rank = rank;
  header.round = round;
  header.total = header.length = static_cast<uint32_t>(total);
  return header;
}

struct Fixture {
  Seats seats;
  std::atomic<uint64_t> held{0};
  ShardMemory memory{"a test", 0, held};
  ServerFeedback feedback{memory};
  EncodedRound round{7, memory};
  NoLink link;

  Payload Run(const ServerCodec& codec, uint32_t number, const std::vector<Payload>& payloads) {
    seats = Seats(static_cast<uint32_t>(payloads.size()));
    for (uint32_t rank = 0; rank < payloads.size(); ++rank) {
      const Header header = HeaderOf(rank, number, payloads[rank].size());
      const Terms terms = TermsOf(header, &codec);
      if (rank == 0) round.Begin(header, terms, PolicyFor(terms, &feedback), seats);
      REQUIRE(round.Reserve(header).ok());
      std::byte* const place = round.Place(link, header);
      REQUIRE(place != nullptr);
      std::memcpy(place, payloads[rank].data(), payloads[rank].size());
      REQUIRE(round.Land(link, header, place).ok());
      auto more = round.Advance();
      REQUIRE(more.ok());
      CHECK(*more == (rank + 1 == payloads.size()));
    }
    Payload result(round.result(), round.result() + round.total());
    round.Release();
    return result;
  }
};

}  // namespace

TEST_CASE("encoded round: payloads and results of any length, different by rank and round") {
  Fixture fixture;
  const ServerCodec codec = CodecOf(std::make_shared<Lists>(3));
  for (uint32_t number = 0; number < 20; ++number) {
    std::vector<Payload> payloads;
    Payload all;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const Payload body(1 + (number * 37 + rank * 411) % 1000, static_cast<std::byte>(rank + number));
      payloads.push_back(WithHeader(*codec.codec, 1000, 1, body));
      all.insert(all.end(), body.begin(), body.end());
    }
    CHECK(fixture.Run(codec, number, payloads) == WithHeader(*codec.codec, 1000, 3, all));
  }
  const uint64_t held = fixture.held;
  CHECK(held < 16 << 10);
  fixture.memory.Trim();
  CHECK(fixture.held == 0);
}

TEST_CASE("two-way: all that results have said, and what is left out now, is all that was summed") {
  constexpr uint32_t kNumel = 5000, kWorld = 4, kRounds = 30;
  Fixture fixture;
  const ServerCodec codec = CodecOf(CodecFor("onebit:block=256", kWorld), true);
  std::vector<double> summed(kNumel), said(kNumel);
  Floats decoded(kNumel);
  const auto add = [&](const Payload& payload, std::vector<double>& to) {
    const auto body = std::span(payload).subspan(kPayloadHeader);
    REQUIRE(codec.codec->Decode(body, 1, {}, nullptr, nullptr, 1.0f, decoded).ok());
    for (uint32_t i = 0; i < kNumel; ++i) to[i] += decoded[i];
  };
  for (uint32_t number = 0; number < kRounds; ++number) {
    std::vector<Floats> xs;
    for (uint32_t rank = 0; rank < kWorld; ++rank) xs.push_back(Gaussian(kNumel, number * kWorld + rank));
    const auto payloads = Encoded(*codec.codec, xs, 7, number);
    for (const Payload& payload : payloads) add(payload, summed);
    add(fixture.Run(codec, number, payloads), said);
  }
  double difference = 0, size = 0, left = 0;
  for (uint32_t i = 0; i < kNumel; ++i) {
    const double residual = fixture.feedback.residual()[i];
    difference += std::pow(said[i] + residual - summed[i], 2);
    size += summed[i] * summed[i];
    left += residual * residual;
  }
  CHECK(std::sqrt(difference / size) < 1e-5);
  CHECK(left > 0);
}

TEST_CASE("two-way: an infinity is in one result, and leaves nothing behind") {
  constexpr uint32_t kNumel = 512;
  Fixture fixture;
  const ServerCodec codec = CodecOf(CodecFor("onebit:block=256", 1), true);
  Floats x = Gaussian(kNumel, 0);
  x[300] = INFINITY;
  const Payload result = fixture.Run(codec, 0, Encoded(*codec.codec, {x}, 7, 0));
  Floats decoded(kNumel);
  REQUIRE(codec.codec->Decode(std::span(result).subspan(kPayloadHeader), 1, {}, nullptr, nullptr, 1.0f, decoded).ok());
  CHECK(!std::isfinite(decoded[300]));
  CHECK(std::isfinite(decoded[0]));
  for (const float value : fixture.feedback.residual()) CHECK(std::isfinite(value));
}

}  // namespace byteps_like::testing
