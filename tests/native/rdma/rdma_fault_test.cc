// What goes wrong with queue pairs, and how it is said. Needs root for what `tc` does to the cable of the machine.
#include "tests/native/rdma/rdma_cable_fixture.h"
#include "tests/native/rdma/rdma_fixture.h"

namespace byteps_like::testing {
namespace {

// From device 0 to device 1, over the first cable. Empty: this host has none.
std::string OverCable(const std::string& query) {
  if (!HasCables()) {
    MESSAGE("skipped: this is not the machine of scripts/rdma_vm.sh");
    return "";
  }
  return "rdma://" + RdmaDevices().at(1).host + ":0" + query;
}

}  // namespace

TEST_CASE("rdma: the other process that sends" * doctest::skip()) {
  const char* const url = std::getenv(kOtherProcess);
  if (url == nullptr) return;
  auto stream = Connect(url, In(20));
  if (!stream.ok()) return;
  LoopThread thread;
  Peer peer(thread, std::move(*stream));
  for (uint64_t i = 0; peer.Wait([&] { return peer.sent + 4 > i || peer.closed > 0; }, 60); ++i) {
    peer.Send(Push(i, Pattern(200'000, 1)));
  }
}

TEST_CASE("rdma: a killed peer is lost within seconds, after what it had sent") {
  if (NoRdma()) return;
  auto listener = Listen(FreshUrl("rdma"));
  REQUIRE(listener.ok());
  OtherProcess sender((*listener)->url(), "rdma: the other process that sends");
  auto stream = (*listener)->Accept(In(20));
  REQUIRE_MESSAGE(stream.ok(), stream.status().message());
  LoopThread thread;
  Peer server(thread, std::move(*stream));
  REQUIRE(server.WaitFrames(3));
  sender.Kill();
  const auto begin = Clock::now();
  REQUIRE(server.WaitClosed(30));
  CHECK(Clock::now() - begin < std::chrono::seconds(10));
  CHECK_MESSAGE(server.why.code() == Code::kPeerLost, server.why.message());
  CHECK(Contains(server.why.message(), "rdma "));
  for (const Message& message : server.received) CHECK(message.payload == Pattern(200'000, 1));
}

TEST_CASE("rdma: memory that goes while it is offered breaks the link, and the verbs' status is named") {
  if (NoRdma()) return;
  RdmaPair pair(FreshUrl("rdma"));
  {
    Memory gone(kTotal);
    REQUIRE(pair.server.Offer(gone.data(), kTotal));
    pair.server.Send(Push(9, {}));
    REQUIRE(pair.client.WaitFrames(1));
  }
  pair.client.Send(Segment(0, 1u << 20, kTotal));
  REQUIRE(pair.client.WaitClosed());
  CHECK_MESSAGE(Contains(pair.client.why.message(), "IBV_WC_REM_ACCESS_ERR"), pair.client.why.message());
  REQUIRE(pair.server.WaitClosed());
  CHECK_FALSE(pair.server.why.ok());
}

TEST_CASE("rdma: on a cable that loses one packet in a hundred, everything arrives") {
  if (NoRdma()) return;
  const std::string url = OverCable("?qps=2&ack_timeout=14");
  if (url.empty()) return;
  RdmaPair pair(url);
  const Bytes pattern = Pattern(kTotal, 1);
  std::copy(pattern.begin(), pattern.end(), pair.from.data());
  REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
  pair.server.Send(Push(9, {}));
  REQUIRE(pair.client.WaitFrames(1));
  const CableFault cable("loss 1%");
  for (uint32_t i = 0; i < 4; ++i) {
    pair.client.Send(Segment(i << 20, 1u << 20, kTotal));
    pair.server.Send(Push(100 + i, Pattern(50'000, i)));
    pair.client.Send(Push(200 + i, Pattern(100, i)));
  }
  REQUIRE(pair.server.WaitFrames(8, 60));
  REQUIRE(pair.client.WaitFrames(5, 60));
  CHECK(std::equal(pattern.begin(), pattern.end(), pair.to.data()));
  for (uint32_t i = 0; i < 4; ++i) {
    CHECK(pair.client.received[1 + i].payload == Pattern(50'000, i));
    CHECK(pair.server.received[2 * i + 1].payload == Pattern(100, i));
  }
}

TEST_CASE("rdma: a cable that is cut breaks the link, and the verbs' status is named") {
  if (NoRdma()) return;
  const std::string url = OverCable("?ack_timeout=12");
  if (url.empty()) return;
  RdmaPair pair(url);
  const CableFault cable("loss 100%");
  pair.client.Send(Push(5, Pattern(1000, 1)));
  REQUIRE(pair.client.WaitClosed(30));
  CHECK(pair.client.why.code() == Code::kPeerLost);
  CHECK_MESSAGE(Contains(pair.client.why.message(), "IBV_WC_RETRY_EXC_ERR"), pair.client.why.message());
  CHECK(Contains(pair.client.why.message(), "rdma 10.77.1.1"));
}

TEST_CASE("rdma: connecting over a cable that is cut ends in time") {
  if (NoRdma()) return;
  const std::string url = OverCable("");
  if (url.empty()) return;
  auto listener = Listen(url);
  REQUIRE(listener.ok());
  const CableFault cable("loss 100%");
  const auto begin = Clock::now();
  CHECK(Connect((*listener)->url(), In(0.5)).status().code() == Code::kTimeout);
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
}

}  // namespace byteps_like::testing
