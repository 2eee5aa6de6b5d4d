// The simulated network, as streams see it.
#include "csrc/transport/sim/network.h"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/sim/world.h"
#include "csrc/transport/stream.h"

namespace byteps_like::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kUrl[] = "sim://there";

// A process that listens and one that dials, with a stream each.
class Pair {
 public:
  using Use = std::function<void(Stream&)>;

  explicit Pair(NetworkOptions options = {}) : network_(world_, tap_, options) {
    accepts_ = world_.AddProcess();
    dials_ = world_.AddProcess();
  }

  void Run(const Use& accepting, const Use& dialling) {
    world_.Run(accepts_, [accepting] {
      auto listener = Must(Listen(kUrl));
      const auto stream = Must(listener->Accept(Clock::now() + seconds(100)));
      accepting(*stream);
    });
    world_.Run(dials_, [dialling] {
      SleepFor(milliseconds(1));
      const auto stream = Must(Connect(kUrl, Clock::now() + seconds(100)));
      dialling(*stream);
    });
    while (world_.Step()) {
    }
    CHECK(world_.threads() == 0);
  }

  template <typename T>
  static T Must(Result<T> result) {
    if (!result.ok()) throw std::runtime_error(result.status().message());
    return std::move(*result);
  }

  uint64_t wire() const { return network_.wires().at(0).number; }
  World& world() { return world_; }
  Network& network() { return network_; }
  uint32_t accepts() const { return accepts_; }
  uint32_t dials() const { return dials_; }

 private:
  World world_{11};
  Tap tap_;
  Network network_;
  uint32_t accepts_ = 0, dials_ = 0;
};

Deadline Soon() { return Clock::now() + seconds(60); }
Deadline Late() { return Clock::now() + seconds(600); }

std::vector<std::byte> Numbered(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

// Waits for the end of the stream; its status.
Status End(Stream& stream) {
  std::byte byte;
  return ReadFull(stream, {&byte, 1}, Late());
}

}  // namespace

TEST_CASE("simulated network: bytes come in order, however small its window") {
  for (const size_t window : {1u, 7u, 100'000u}) {
    Pair pair({.jitter = milliseconds(3), .window = window, .cuts_short = 2});
    const auto sent = Numbered(5'000);
    std::vector<std::byte> got(sent.size());
    pair.Run([&](Stream& stream) { CHECK(ReadFull(stream, got, Late()).ok()); },
             [&](Stream& stream) {
               CHECK(WriteFull(stream, sent, Late()).ok());
               CHECK(End(stream).code() == Code::kClosed);
             });
    CHECK(got == sent);
  }
}

TEST_CASE("simulated network: an orderly end comes after the last byte") {
  Pair pair;
  const auto sent = Numbered(1'000);
  pair.Run(
      [&](Stream& stream) {
        std::vector<std::byte> got(sent.size());
        CHECK(ReadFull(stream, got, Soon()).ok());
        CHECK(End(stream).code() == Code::kClosed);
      },
      [&](Stream& stream) { CHECK(WriteFull(stream, sent, Soon()).ok()); });
}

TEST_CASE("simulated network: a reset is told to both ends, a stall to neither") {
  Pair pair;
  pair.world().At(pair.world().Now() + seconds(1), [&] { pair.network().Stall(pair.wire(), seconds(4)); });
  pair.world().At(pair.world().Now() + seconds(10), [&] { pair.network().Reset(pair.wire()); });
  pair.Run(
      [&](Stream& stream) {
        std::byte byte;
        CHECK(ReadFull(stream, {&byte, 1}, Soon()).ok());
        CHECK(pair.world().age() > seconds(5));
        CHECK(End(stream).code() == Code::kPeerLost);
      },
      [&](Stream& stream) {
        SleepFor(seconds(2));
        const auto byte = Numbered(1);
        CHECK(WriteFull(stream, byte, Soon()).ok());
        CHECK(End(stream).code() == Code::kPeerLost);
        CHECK(pair.world().age() < seconds(11));
      });
}

TEST_CASE("simulated network: who sends into silence is told after the limit") {
  Pair pair;
  pair.world().At(pair.world().Now() + seconds(1), [&] { pair.network().Swallow(pair.wire()); });
  pair.Run([](Stream& stream) { CHECK(End(stream).code() == Code::kPeerLost); },
           [&](Stream& stream) {
             stream.LimitSilence(20);
             SleepFor(seconds(2));
             CHECK(WriteFull(stream, Numbered(10), Soon()).ok());
             CHECK(End(stream).code() == Code::kPeerLost);
             CHECK(pair.world().age() >= seconds(21));
             CHECK(pair.world().age() < seconds(25));
           });
}

TEST_CASE("simulated network: nothing passes a cut, and all of it does once that is mended") {
  Pair pair;
  pair.world().At(pair.world().Now() + seconds(1), [&] { pair.network().Cut(pair.dials(), pair.accepts()); });
  pair.world().At(pair.world().Now() + seconds(9), [&] { pair.network().Mend(pair.dials(), pair.accepts()); });
  const auto sent = Numbered(500);
  pair.Run(
      [&](Stream& stream) {
        std::vector<std::byte> got(sent.size());
        CHECK(ReadFull(stream, got, Soon()).ok());
        CHECK(got == sent);
        CHECK(pair.world().age() >= seconds(9));
      },
      [&](Stream& stream) {
        SleepFor(seconds(2));
        CHECK(WriteFull(stream, sent, Soon()).ok());
        CHECK(End(stream).code() == Code::kClosed);
      });
}

TEST_CASE(
    "simulated network: of a killed process its peers hear at once, of a host without power only by its silence") {
  for (const bool silently : {false, true}) {
    Pair pair;
    pair.world().At(pair.world().Now() + seconds(1), [&] { pair.network().Sever(pair.accepts(), silently); });
    pair.Run([](Stream& stream) { CHECK(!End(stream).ok()); },
             [&](Stream& stream) {
               stream.LimitSilence(5);
               CHECK(End(stream).code() == Code::kPeerLost);
               CHECK((pair.world().age() > seconds(2)) == silently);
               auto again = Connect(kUrl, Clock::now() + seconds(3));
               CHECK(again.status().code() == (silently ? Code::kTimeout : Code::kPeerLost));
             });
  }
}

TEST_CASE("simulated network: addresses are refused where nobody listens, and outside of simulations") {
  Pair pair;
  Code code = Code::kOk;
  pair.world().Run(pair.dials(), [&] { code = Connect("sim://nowhere", Soon()).status().code(); });
  while (pair.world().Step()) {
  }
  CHECK(code == Code::kPeerLost);
}

}  // namespace byteps_like::sim
