// What only shm has: another process that dies, and memory that another process can write to.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>
#include <future>

#include "csrc/transport/memory/ring_stream.h"
#include "csrc/transport/memory/socket_channel.h"
#include "server/server.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

class NoChannel final : public PeerChannel {
 public:
  bool alive() const override { return true; }
  int fd() const override { return -1; }
  Status Pass(int) override { return Status(Code::kInvalid, "no"); }
  Result<Fd> Take() override { return Status(Code::kInvalid, "no"); }
  std::string peer() const override { return "nobody"; }
};

std::unique_ptr<RingStream> OneEnd(const std::shared_ptr<SharedBuffer>& memory) {
  RingEnd end{memory, 0, std::move(MakeDoorbell()->inside), std::move(MakeDoorbell()->button),
              std::make_unique<NoChannel>()};
  return std::make_unique<RingStream>(std::move(end));
}

// A unix socket at the place where a shm listener would be.
Fd ListenAt(const std::string& url) {
  const std::string path = "byteps_like/" + url.substr(url.find("://") + 3);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), name.sun_path + 1);
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), size) == 0);
  REQUIRE(::listen(fd.get(), 5) == 0);
  return fd;
}

}  // namespace

TEST_CASE("shm: a killed peer is lost, after what it wrote was read") {
  const std::string url = FreshUrl("shm");
  auto listener = Listen(url);
  REQUIRE(listener.ok());
  const Bytes sent = Pattern(1000, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    auto stream = Connect(url, In(5));
    if (stream.ok() && WriteFull(**stream, sent, In(5)).ok()) ::pause();
    ::_exit(1);
  }
  auto stream = (*listener)->Accept(In(5));
  REQUIRE(stream.ok());
  CHECK((*stream)->peer() == "shm pid " + std::to_string(child));
  Bytes received(500);
  REQUIRE(ReadFull(**stream, received, In(5)).ok());
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(child, SIGKILL);
  });
  received.resize(501);
  const auto begin = Clock::now();
  const Status status = ReadFull(**stream, received, In(10));
  CHECK(status.code() == Code::kPeerLost);
  CHECK(std::equal(received.begin(), received.begin() + 500, sent.begin() + 500));
  CHECK(Clock::now() - begin < std::chrono::seconds(2));
  killer.join();
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("shm: indices that a peer has spoilt are found before they are used") {
  auto memory = MakeRingMemory();
  REQUIRE(memory.ok());
  auto stream = OneEnd(*memory);
  Bytes bytes = Pattern(100, 1);
  const iovec piece{bytes.data(), bytes.size()};
  CHECK(stream->Write(std::span(&piece, 1)).ok());
  std::fill_n((*memory)->data(), 640, std::byte{0x55});  // both directions' indices and flags, not the closed flags
  std::fill_n((*memory)->data() + 512, 128, std::byte{0});
  CHECK(stream->Read(bytes.data(), bytes.size()).status().code() == Code::kCorrupt);
  CHECK(stream->Write(std::span(&piece, 1)).status().code() == Code::kCorrupt);
}

// It takes the rings and doorbells that it is offered, makes them blocking, fills what it can and reads nothing.
struct Hostile {
  explicit Hostile(const std::string& url) : socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    const std::string path = "byteps_like/" + url.substr(url.find("://") + 3);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), name.sun_path + 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
    REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), size) == 0);
    Bytes offer(64);
    while (offered.fds.empty()) offered = std::move(*ReceiveWithFds(socket.get(), offer.data(), offer.size()));
    for (size_t bell = 1; bell < offered.fds.size(); ++bell) {
      const int fd = offered.fds[bell].get();
      const uint64_t most = ~uint64_t{0} - 1;
      while (::write(fd, &most, sizeof(most)) > 0 && ++written < 100'000) {
      }
      ::fcntl(fd, F_SETFL, 0);
    }
  }
  Fd socket;
  Received offered;
  int written = 0;
};

TEST_CASE("shm: a peer that makes the doorbells block holds nobody up") {
  const std::string url = FreshUrl("shm");
  Server::Options options;
  options.job = "job";
  options.secret = std::string(32, 's');
  options.urls = {url};
  auto server = Server::Start(std::move(options));
  REQUIRE(server.ok());
  std::deque<Hostile> hostile;
  for (int i = 0; i < 3; ++i) hostile.emplace_back(url);
  for (Hostile& one : hostile) {  // what the server waits for has come: it rings when it goes
    auto memory = SharedBuffer::Map(::dup(one.offered.fds[0].get()));
    REQUIRE(memory.ok());
    std::fill_n((*memory)->data() + 128, 4, std::byte{1});
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));  // the handshakes' deadline: they are cut off
  auto stopped = std::async(std::launch::async, [&] { (*server)->Stop(); });
  const bool ended = stopped.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  CHECK(ended);
  if (!ended) ::_exit(1);  // nothing can free that thread
}

TEST_CASE("shm: another user's process is refused, also by root") {
  if (::geteuid() != 0) return;
  const std::string url = FreshUrl("shm");
  auto listener = Listen(url);
  REQUIRE(listener.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(2);
    ::_exit(Connect(url, In(2)).ok() ? 1 : 0);
  }
  CHECK((*listener)->Accept(In(0.5)).status().code() == Code::kTimeout);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("shm: something else at the address is refused") {
  for (const char* answer : {"", "nonsense", "BPLSnonsense-of-16"}) {
    CAPTURE(answer);
    const std::string url = FreshUrl("shm");
    const Fd listener = ListenAt(url);
    std::thread impostor([&] {
      const Fd peer(::accept(listener.get(), nullptr, nullptr));
      ::send(peer.get(), answer, std::string(answer).size(), MSG_NOSIGNAL);
    });
    const Status status = Connect(url, In(5)).status();
    impostor.join();
    CHECK_FALSE(status.ok());
    CHECK(status.message().find(url) != std::string::npos);
  }
  const std::string url = FreshUrl("shm");
  const Fd silent = ListenAt(url);
  CHECK(Connect(url, In(0.05)).status().code() == Code::kTimeout);
}

}  // namespace byteps_like::testing
