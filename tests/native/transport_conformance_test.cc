// One suite for every transport, plain and wrapped by chaos.
#include <doctest/doctest.h>

#include "tests/native/transport_fixture.h"

namespace byteps_like::testing {
namespace {

std::vector<std::string> Urls() {
  std::vector<std::string> urls;
  for (const Transport& transport : Transports()) {
    if (transport.is_viable().empty()) urls.push_back(FreshUrl(std::string(transport.scheme)));
  }
  return urls;
}

TEST_CASE("transport: frames of many sizes arrive whole and in order") {
  for (const std::string& url : Urls()) {
    CAPTURE(url);
    LoopThread thread;
    StreamPair streams = MakeStreams(url);
    Peer client(thread, std::move(streams.client)), server(thread, std::move(streams.server));
    const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 65536, 65537, 262144, 1 << 20, 3000001, 16 << 20};
    size_t count = 0;
    for (const size_t size : sizes) {
      client.Send(Push(count, Pattern(size, static_cast<uint32_t>(count))));
      server.Send(Push(count, Pattern(size, static_cast<uint32_t>(100 + count))));
      ++count;
    }
    for (Peer* peer : {&client, &server}) {
      const uint32_t base = peer == &client ? 100 : 0;
      REQUIRE(peer->WaitFrames(count));
      for (size_t i = 0; i < count; ++i) {
        CHECK(peer->received[i].header.key == i);
        CHECK(peer->received[i].payload == Pattern(sizes[i], static_cast<uint32_t>(base + i)));
      }
    }
    client.Close(Status(Code::kClosed, "done"));
    REQUIRE(server.WaitClosed());
    CHECK(server.why.code() == Code::kPeerLost);
    REQUIRE(client.WaitClosed());
    CHECK(client.why.code() == Code::kClosed);
    CHECK(client.why.message() == "done");
  }
}

TEST_CASE("transport: ping-pong loses no wake-up") {
  for (const std::string& url : Urls()) {
    CAPTURE(url);
    LoopThread left, right;
    StreamPair streams = MakeStreams(url);
    Peer client(left, std::move(streams.client)), server(right, std::move(streams.server));
    for (uint32_t i = 0; i < 2000; ++i) {
      client.Send(Push(i, Pattern(i % 300, i)));
      REQUIRE(server.WaitFrames(i + 1));
      server.Send(Push(i, Pattern(i % 70, i)));
      REQUIRE(client.WaitFrames(i + 1));
    }
  }
}

}  // namespace
}  // namespace byteps_like::testing
