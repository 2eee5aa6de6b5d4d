// Links in step: the rule by itself, and in an engine, before and after tensors have moved.
#include "csrc/engine/in_step.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>

#include "csrc/engine/engine.h"
#include "tests/native/server/raw_worker.h"

namespace byteps_like::testing {
namespace {

constexpr int64_t kUnit = 1000, kLead = 4000;

InStep Links(std::initializer_list<int64_t> weights) {
  InStep links;
  for (const int64_t weight : weights) links.Place(links.Add(), weight);
  return links;
}

}  // namespace

TEST_CASE("whoever is served when, links are never farther apart than the lead and what they send at once") {
  constexpr std::array<int64_t, 3> kWeights = {600'000, 100'000, 300'000};
  InStep links = Links({kWeights[0], kWeights[1], kWeights[2]});
  for (size_t link = 0; link < 3; ++link) links.Wants(link, 0);
  std::array<double, 3> part{};
  std::mt19937 random(7);
  int asked = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    const size_t link = random() % 10 < 8 ? 1 : random() % 3;  // a network that prefers the one with least to carry
    if (link == 0) ++asked;
    const bool may = links.MayGo(link, kLead);
    const double behind = *std::min_element(part.begin(), part.end());
    CHECK((may || part[link] > behind));
    if (!may) continue;
    links.Sent(link, kUnit);
    part[link] += double{kUnit} / static_cast<double>(kWeights[link]);
    CHECK(part[link] - behind <= kLead / 1e6 + double{kUnit} / static_cast<double>(kWeights[link]) + 1e-9);
  }
  CHECK(part[0] > 0.9 * asked * double{kUnit} / static_cast<double>(kWeights[0]));  // it hardly ever waited
}

TEST_CASE("nobody waits for what is less urgent, at rest, or was at rest") {
  InStep links = Links({1000, 1000});
  links.Wants(0, 5);
  links.Wants(1, 4);
  links.Sent(0, 900);
  CHECK(links.MayGo(0, 0));
  links.Wants(1, 5);
  CHECK(!links.MayGo(0, 0));
  links.Rests(1);
  CHECK(links.MayGo(0, 0));
  links.Wants(1, 5);  // it has saved nothing up
  links.Sent(1, 1);
  CHECK(links.MayGo(0, 0));
  CHECK(!links.MayGo(1, 0));
}

TEST_CASE("what is placed on a link counts from then on") {
  InStep links = Links({1000, 1000});
  for (size_t link = 0; link < 2; ++link) links.Wants(link, 0);
  links.Place(0, 9000);
  links.Sent(0, 1000);
  links.Sent(1, 200);
  CHECK(links.MayGo(0, 0));
  CHECK(!links.MayGo(1, 0));
  links.Place(0, -9000);
  links.Sent(0, 200);
  CHECK(!links.MayGo(0, 0));
}

namespace {

constexpr uint32_t kLarge = 3 << 20, kSmall = 1 << 20;
constexpr size_t kCredit = 64 << 10, kSegmentBytes = 4 << 10;

// An engine and two servers that take everything and answer nothing.
struct TwoServers {
  TwoServers() {
    std::vector<std::unique_ptr<Listener>> listeners;
    std::vector<ShardAddress> shards;
    for (uint32_t server = 0; server < 2; ++server) {
      auto listener = Listen("tcp://127.0.0.1:0");
      REQUIRE(listener.ok());
      shards.push_back({server, 0, {(*listener)->url()}});
      listeners.push_back(std::move(*listener));
    }
    EngineOptions options;
    options.credentials = {"job", std::string(32, 's'), 1};
    options.segment_bytes = kSegmentBytes;
    options.credit_bytes = kCredit;
    options.on_event = [](Code, const std::string&, bool) {};
    std::thread accept([&] {
      for (auto& listener : listeners) {
        auto stream = listener->Accept(In(5));
        if (stream.ok() && ServerHandshake(**stream, options.credentials, In(5)).ok())
          links.emplace_back(std::move(*stream));
      }
    });
    auto started = Engine::Start(options, shards);
    accept.join();
    REQUIRE(started.ok());
    engine = std::move(*started);
  }

  uint32_t Declare(uint64_t key, uint32_t first, uint32_t second) const {
    return engine->Declare(DType::kUInt8, {{key, 0, first, 0}, {key + 1, first, second, 1}});
  }

  // Payload until nothing comes for a while.
  double Taken(size_t server) {
    double bytes = 0;
    while (auto message = links[server].Receive(0.03)) bytes += message->header.length;
    return bytes;
  }

  std::vector<RawLink> links;
  std::unique_ptr<Engine> engine;
};

}  // namespace

TEST_CASE("an engine's links keep step by the bytes placed on them, also when these have moved") {
  for (const bool moved : {false, true}) {
    TwoServers world;
    uint32_t tensor = world.Declare(0, kLarge, kSmall);
    if (moved) {
      const uint32_t before = tensor;
      tensor = world.Declare(2, kSmall, kLarge);
      world.engine->Retire(before);
    }
    std::vector<std::byte> memory(kLarge + kSmall);
    REQUIRE(world.engine->Submit({.tensor = tensor, .address = memory.data(), .last_part = 2}).ok());
    const double small = world.Taken(moved ? 0 : 1),
                 large = world.Taken(moved ? 1 : 0);  // the large one may send more meanwhile
    CAPTURE(moved);
    CHECK(small > 0);
    CHECK(small <= kSmall * (large / kLarge + kCredit / 2.0 / (kLarge + kSmall)) + kSegmentBytes);
    world.engine->Close();
  }
}

}  // namespace byteps_like::testing
