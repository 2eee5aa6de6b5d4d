// What only shm has: another process that dies, and memory that another process can write to.
#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>

#include "csrc/transport/ring_stream.h"
#include "tests/native/transport_fixture.h"

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
  RingEnd end{memory, 0, std::move(*MakeDoorbell()), std::move(*MakeDoorbell()), std::make_unique<NoChannel>()};
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
