// What chaos promises: each fault happens, is noticed by name, and is the same for the same seed.
#include <doctest/doctest.h>

#include "csrc/transport/chaos/chaos_plan.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

std::vector<uint64_t> Positions(uint64_t seed, double per_kib, int count) {
  FaultPositions positions(seed, per_kib);
  std::vector<uint64_t> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(positions.next());
    positions.Advance();
  }
  return all;
}

}  // namespace

TEST_CASE("chaos: fault positions follow the seed, the rate and the spared first KiB") {
  CHECK(Positions(3, 0.01, 50) == Positions(3, 0.01, 50));
  CHECK(Positions(3, 0.01, 50) != Positions(4, 0.01, 50));
  const auto positions = Positions(3, 0.01, 2000);
  CHECK(positions.front() > 1024);
  const double mean = static_cast<double>(positions.back() - 1024) / 2000;
  CHECK(mean > 0.9 * 102'400);
  CHECK(mean < 1.1 * 102'400);
  CHECK(FaultPositions(3, 0).next() == std::numeric_limits<uint64_t>::max());
}

TEST_CASE("chaos: a flipped bit is caught by the checksum of the link") {
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    LoopThread thread;
    StreamPair streams = MakeStreams(FreshUrl("chaos+" + scheme, "?seed=11&corrupt=0.002"));
    Peer client(thread, std::move(streams.client)), server(thread, std::move(streams.server));
    for (uint32_t i = 0; i < 400; ++i) client.Send(Push(i, Pattern(50'000, i)));
    REQUIRE(server.WaitClosed());
    CHECK(server.why.code() == Code::kCorrupt);
    for (const Message& message : server.received) {
      REQUIRE(message.payload == Pattern(50'000, static_cast<uint32_t>(message.header.key)));
    }
  }
}

TEST_CASE("chaos: a drop ends the link on both sides, what had come was whole") {
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    LoopThread thread;
    StreamPair streams = MakeStreams(FreshUrl("chaos+" + scheme, "?seed=12&drop=0.002"));
    Peer client(thread, std::move(streams.client)), server(thread, std::move(streams.server));
    for (uint32_t i = 0; i < 400; ++i) client.Send(Push(i, Pattern(50'000, i)));
    REQUIRE(client.WaitClosed());
    REQUIRE(server.WaitClosed());
    CHECK(client.why.code() == Code::kPeerLost);
    CHECK(server.why.code() == Code::kPeerLost);
    for (const Message& message : server.received) {
      REQUIRE(message.payload == Pattern(50'000, static_cast<uint32_t>(message.header.key)));
    }
  }
}

TEST_CASE("chaos: delay, rate and stall take the time they should") {
  struct Case {
    const char* query;
    size_t bytes;
    double least, most;
  };
  const Case cases[] = {
      {"?delay_ms=30", 100, 0.03, 2},
      {"?rate=4e6", 464'000, 0.09, 2},  // 64 KiB at once, then 400 KB at 4 MB/s
      {"?stall=1&stall_ms=20", 5'000, 0.02, 5},
  };
  for (const std::string& scheme : TestedSchemes()) {
    for (const Case& one : cases) {
      CAPTURE(scheme);
      CAPTURE(one.query);
      LoopThread thread;
      StreamPair streams = MakeStreams(FreshUrl("chaos+" + scheme, one.query));
      Peer client(thread, std::move(streams.client)), server(thread, std::move(streams.server));
      const auto begin = Clock::now();
      client.Send(Push(1, Pattern(one.bytes, 1)));
      REQUIRE(server.WaitFrames(1));
      CHECK(SecondsSince(begin) >= one.least);
      CHECK(SecondsSince(begin) < one.most);
      CHECK(server.received[0].payload == Pattern(one.bytes, 1));
    }
  }
}

TEST_CASE("chaos: one connection after the other meets other faults, a new process the same") {
  const auto frames_before_drop = [](const std::string& url) {
    std::vector<size_t> counts;
    for (int connection = 0; connection < 4; ++connection) {
      LoopThread thread;
      auto listener = Listen(url);
      REQUIRE(listener.ok());
      auto client_stream = Connect("chaos+" + url + "?seed=3&drop=0.01", In(5));
      REQUIRE(client_stream.ok());
      auto server_stream = (*listener)->Accept(In(5));
      REQUIRE(server_stream.ok());
      Peer client(thread, std::move(*client_stream)), server(thread, std::move(*server_stream));
      for (uint32_t i = 0; i < 3000; ++i) client.Send(Push(i, Pattern(1000, i)));
      REQUIRE(server.WaitClosed());
      counts.push_back(server.received.size());
    }
    return counts;
  };
  const auto counts = frames_before_drop(FreshUrl("inproc"));
  CHECK(counts == frames_before_drop(FreshUrl("inproc")));
  CHECK(std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) != counts.end());
}

}  // namespace byteps_like::testing
