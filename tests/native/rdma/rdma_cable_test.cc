// A peer that stops for a while, a cable that loses one packet in fifty or is cut while both ends send: what can be
// mended is, unseen; else both ends are told within seconds, with the status of the verbs by name.
#include <time.h>

#include <filesystem>

#include "tests/native/rdma/rdma_cable_fixture.h"
#include "tests/native/rdma/rdma_fixture.h"

namespace byteps_like::testing {
namespace {

// Resends after 16 ms and not half a second: faults of a cable two steps long need not take longer.
constexpr char kHasty[] = "?ack_timeout=12";

std::string WithQuery(const std::string& url, const std::string& query) {
  return url + (url.find('?') == std::string::npos ? query : "&" + query.substr(1));
}

// Both ends of a link in this process, each with its loop.
struct Pair {
  Pair() {
    auto listener = Listen(FreshUrl("rdma", kHasty));
    REQUIRE_MESSAGE(listener.ok(), listener.status().message());
    std::unique_ptr<Stream> accepted;
    std::thread accept([&] {
      auto stream = (*listener)->Accept(In(10));
      if (stream.ok()) accepted = std::move(*stream);
    });
    auto connected = Connect(WithQuery((*listener)->url(), kHasty), In(10));
    accept.join();
    REQUIRE_MESSAGE(connected.ok(), connected.status().message());
    REQUIRE(accepted != nullptr);
    client = std::make_unique<Peer>(client_thread, std::move(*connected));
    server = std::make_unique<Peer>(server_thread, std::move(accepted));
  }
  LoopThread client_thread, server_thread;
  std::unique_ptr<Peer> client, server;
};

// This end of a link to another process.
struct Linked {
  Linked() {
    auto listener = Listen(FreshUrl("rdma"));
    REQUIRE_MESSAGE(listener.ok(), listener.status().message());
    process = std::make_unique<OtherProcess>((*listener)->url(), "rdma: the other process that echoes");
    auto stream = (*listener)->Accept(In(30));
    REQUIRE_MESSAGE(stream.ok(), stream.status().message());
    peer = std::make_unique<Peer>(thread, std::move(*stream));
    REQUIRE(peer->WaitFrames(1));  // it is ready
    peer->received.clear();
  }
  LoopThread thread;
  std::unique_ptr<OtherProcess> process;
  std::unique_ptr<Peer> peer;
};

// Frames of 1 B to 300 KB, each with bytes of its own, whole and in order.
void SendMany(Peer& peer, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) peer.Send(Push(i, Pattern(1 + i * 7919 % 300'000, i)));
}
void CheckMany(Peer& peer, uint32_t count) {
  REQUIRE_MESSAGE(peer.WaitFrames(count, 60), peer.received.size(), " came; ", peer.why.message());
  for (uint32_t i = 0; i < count; ++i) {
    CHECK(peer.received[i].header.key == i);
    CHECK(peer.received[i].payload == Pattern(1 + i * 7919 % 300'000, i));
  }
}

}  // namespace

TEST_CASE("rdma: the machine that is made for it has it") {
  if (HasCables()) CHECK(rdma::IsViable().ok());
}

TEST_CASE("rdma: the other process that echoes" * doctest::skip()) {
  const char* const url = std::getenv(kOtherProcess);
  if (url == nullptr) return;
  auto stream = Connect(url, In(20));
  REQUIRE(stream.ok());
  LoopThread thread;
  Peer peer(thread, std::move(*stream));
  peer.SetOnFrame([&](Link&, const Header& header, std::byte* payload) {
    peer.Send(Push(header.key, Bytes(payload, payload + header.length)));
  });
  peer.Send(Push(0, {}));
  peer.WaitClosed(120);
}

TEST_CASE("rdma: a peer that is stopped is not overrun, and goes on with all that was sent") {
  if (NoRdma()) return;
  constexpr uint32_t kFrames = 100;
  Linked linked;
  linked.process->Stop();
  SendMany(*linked.peer, kFrames);
  CHECK_FALSE(linked.peer->WaitFrames(1, 1));
  CHECK(linked.peer->sent < kFrames);  // 15 MB: more than the landing slots hold
  linked.process->Continue();
  CheckMany(*linked.peer, kFrames);
}

TEST_CASE("rdma: packets that are lost are sent again, and nobody sees it") {
  if (NoRdma() || !HasCables()) return;
  const CableFault fault("loss 2%");  // rdma_rxe gives up a message that has lost seven of its packets
  Pair pair;
  SendMany(*pair.client, 30);
  SendMany(*pair.server, 30);
  CheckMany(*pair.server, 30);
  CheckMany(*pair.client, 30);
}

TEST_CASE("rdma: a cable that is cut ends both links, with the status by name") {
  if (NoRdma() || !HasCables()) return;
  Pair pair;
  SendMany(*pair.client, 5);
  CheckMany(*pair.server, 5);
  const CableFault cut("loss 100%");
  const auto began = Clock::now();
  SendMany(*pair.client, 50);
  SendMany(*pair.server, 50);
  for (Peer* peer : {pair.client.get(), pair.server.get()}) {
    REQUIRE(peer->WaitClosed(30));
    CHECK_MESSAGE(peer->why.code() == Code::kPeerLost, peer->why.message());
    CHECK_MESSAGE(peer->why.message().find("IBV_WC_RETRY_EXC_ERR") != std::string::npos, peer->why.message());
  }
  CHECK(SecondsSince(began) < 10);
}

TEST_CASE("rdma: of a cable that is cut, links hear that nobody sends by") {
  if (NoRdma() || !HasCables()) return;
  Pair pair;
  SendMany(*pair.client, 1);
  CheckMany(*pair.server, 1);
  const CableFault cut("loss 100%");
  for (Peer* peer : {pair.client.get(), pair.server.get()}) {
    REQUIRE(peer->WaitClosed(10));
    CHECK_MESSAGE(peer->why.code() == Code::kPeerLost, peer->why.message());
    CHECK_MESSAGE(peer->why.message().find("IBV_WC_RETRY_EXC_ERR") != std::string::npos, peer->why.message());
  }
}

TEST_CASE("rdma: who waits for the device before memory may change sleeps, and not for ever") {
  if (NoRdma() || !HasCables()) return;
  RdmaPair pair(FreshUrl("rdma"));
  REQUIRE(pair.server.Offer(pair.to.data(), 1u << 20));
  pair.server.Send(Push(9, {}));
  REQUIRE(pair.client.WaitFrames(1));
  const CableFault cut("loss 100%");
  pair.client.Send(Segment(0, 1u << 20, 1u << 20));
  bool sent = false;
  while (!sent) pair.client_thread.Do([&] { sent = pair.client.asked > 0; });
  const auto cpu = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  double used = 0;
  pair.client_thread.Do([&] {
    const double before = cpu();
    pair.client.link().Keep();
    used = cpu() - before;
  });
  CHECK(used < 0.05);
  REQUIRE(pair.client.WaitClosed());
  CHECK_MESSAGE(pair.client.why.message().find("are not acknowledged") != std::string::npos, pair.client.why.message());
}

TEST_CASE("rdma: streams that end over a dead cable share a thread that waits for them") {
  if (NoRdma() || !HasCables()) return;
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  std::vector<StreamPair> pairs;
  for (int i = 0; i < 6; ++i) pairs.push_back(MakeStreams(FreshUrl("rdma")));
  const auto before = threads();
  const CableFault cut("loss 100%");
  Bytes bytes = Pattern(1000, 1);
  const iovec piece{bytes.data(), bytes.size()};
  for (StreamPair& pair : pairs) REQUIRE(pair.client->Write({&piece, 1}).ok());
  pairs.clear();
  CHECK(threads() <= before + 1);
}

}  // namespace byteps_like::testing
