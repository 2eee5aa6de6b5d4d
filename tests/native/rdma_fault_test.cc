// What goes wrong with queue pairs, and how it is said. Needs root for what `tc` does to the cable of the machine.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include "tests/native/rdma_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kTotal = 4u << 20;
constexpr char kChildUrl[] = "BYTEPS_LIKE_TEST_RDMA_CHILD";

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// From device 0 to device 1: over the cable, whose interfaces are rd0 and rd1. Empty: this host has no such cable.
std::string OverCable(const std::string& query) {
  const auto devices = RdmaDevices();
  const bool here = devices.size() >= 2 && std::system("ip link show rd0 > /dev/null 2>&1") == 0;
  if (!here) MESSAGE("skipped: this is not the machine of scripts/rdma_vm.sh");
  return here ? "rdma://" + devices[1].host + ":0" + query : "";
}

class BadCable {  // both ways
 public:
  explicit BadCable(const std::string& netem) {
    for (const char* end : {"rd0", "rd1"}) {
      const std::string command = std::string("tc qdisc add dev ") + end + " root netem " + netem;
      REQUIRE(std::system(command.c_str()) == 0);
    }
  }
  ~BadCable() {
    for (const char* end : {"rd0", "rd1"}) {
      [[maybe_unused]] const int status = std::system((std::string("tc qdisc del dev ") + end + " root").c_str());
    }
  }
};

// This program again, as a process that connects to `url` and sends until it is killed.
pid_t SpawnSender(const std::string& url) {
  const std::string variable = std::string(kChildUrl) + "=" + url;
  const char* const arguments[] = {"native_tests", "-tc=rdma child: *", nullptr};
  const char* const environment[] = {variable.c_str(), nullptr};
  posix_spawn_file_actions_t quiet;
  ::posix_spawn_file_actions_init(&quiet);
  ::posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/proc/self/exe", &quiet, nullptr, const_cast<char**>(arguments),
                                  const_cast<char**>(environment));
  ::posix_spawn_file_actions_destroy(&quiet);
  REQUIRE(error == 0);
  return child;
}

}  // namespace

TEST_CASE("rdma child: sends until it is killed, if it is told where to") {
  const char* const url = std::getenv(kChildUrl);
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
  const pid_t child = SpawnSender((*listener)->url());
  auto stream = (*listener)->Accept(In(20));
  REQUIRE_MESSAGE(stream.ok(), stream.status().message());
  LoopThread thread;
  Peer server(thread, std::move(*stream));
  REQUIRE(server.WaitFrames(3));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
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
  const BadCable cable("loss 1%");
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
  const BadCable cable("loss 100%");
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
  const BadCable cable("loss 100%");
  const auto begin = Clock::now();
  CHECK(Connect((*listener)->url(), In(0.5)).status().code() == Code::kTimeout);
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
}

}  // namespace byteps_like::testing
