// What lies in the kernel for a connection: socket options before and after, on connections of a known rate.
#include "csrc/transport/tcp_queue.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <linux/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <cstdlib>

#include "csrc/base/fd.h"
#include "tests/native/transport_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr int kLongUnsent = 256 << 10, kShortUnsent = 16 << 10;
constexpr int kLeast = 48 << 10, kMost = 256 << 10;

int Option(const Fd& fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  REQUIRE(::getsockopt(fd.get(), level, name, &value, &size) == 0);
  return value;
}
int Unsent(const Fd& fd) { return Option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT); }
int SendBuffer(const Fd& fd) { return Option(fd, SOL_SOCKET, SO_SNDBUF) / 2; }  // the kernel tells twice what was set

// A connection over loopback whose other end reads and forgets.
class Connection {
 public:
  Connection() : out_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener.get(), at, size) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    REQUIRE(::getsockname(listener.get(), at, &size) == 0);
    REQUIRE(::connect(out_.get(), at, size) == 0);
    in_ = Fd(::accept(listener.get(), nullptr, nullptr));
    reader_ = std::thread([this] {
      Bytes bytes(1 << 20);
      while (::read(in_.get(), bytes.data(), bytes.size()) > 0) {
      }
    });
  }
  ~Connection() {
    ::shutdown(out_.get(), SHUT_RDWR);
    reader_.join();
  }
  const Fd& fd() const { return out_; }

  // Until all is acknowledged: the kernel then knows the path.
  void Send(size_t bytes) {
    const Bytes data(64 << 10);
    for (size_t sent = 0; sent < bytes;) {
      const ssize_t more = ::write(out_.get(), data.data(), std::min(data.size(), bytes - sent));
      REQUIRE(more > 0);
      sent += static_cast<size_t>(more);
    }
    const auto limit = In(10);
    while (Info().tcpi_unacked + Info().tcpi_notsent_bytes > 0 && Clock::now() < limit) std::this_thread::yield();
  }
  tcp_info Info() const {
    tcp_info info{};
    socklen_t size = sizeof(info);
    REQUIRE(::getsockopt(out_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    return info;
  }
  // Bytes of half a millisecond and a round trip.
  double Window() const {
    const tcp_info info = Info();
    return static_cast<double>(info.tcpi_delivery_rate) * (2 * info.tcpi_min_rtt * 1e-6 + 0.5e-3);
  }

 private:
  Fd out_, in_;
  std::thread reader_;
};

// The same over a line of its own, shaped to what `tc` calls `rate`; null where this process may not have one.
std::unique_ptr<Connection> Shaped(const std::string& rate) {
  std::unique_ptr<Connection> made;
  std::thread([&] {  // whose network namespace lives as long as the sockets
    const std::string shape = "tc qdisc add dev lo root tbf latency 20ms burst 16kb rate " + rate;
    const std::string commands = "{ ip link set lo up mtu 1500 && " + shape + "; } 2> /dev/null";
    if (::unshare(CLONE_NEWNET) == 0 && std::system(commands.c_str()) == 0) made = std::make_unique<Connection>();
  })
      .join();
  if (made == nullptr) MESSAGE("no line of a known rate: that takes root, ip and tc");
  return made;
}

}  // namespace

TEST_CASE("tcp queue: two segments unsent, and the buffer is the kernel's") {
  const Connection connection;
  const int before = SendBuffer(connection.fd());
  TcpQueue queue(connection.fd().get());
  CHECK(Unsent(connection.fd()) == kLongUnsent);
  CHECK_FALSE(queue.KeepShort(true));  // nothing was sent: there is no rate to go by
  CHECK_FALSE(queue.KeepShort(false));
  CHECK(Unsent(connection.fd()) == kLongUnsent);
  CHECK(SendBuffer(connection.fd()) == before);
}

TEST_CASE("tcp queue: on a slow path it is held short, and let go again") {
  const auto connection = Shaped("80mbit");
  if (connection == nullptr) return;
  const Fd& fd = connection->fd();
  TcpQueue queue(fd.get());
  for (int round = 0; round < 2; ++round) {
    connection->Send(1 << 20);
    const double window = connection->Window();
    CHECK(queue.KeepShort(true));
    CHECK(Unsent(fd) == kShortUnsent);
    CHECK(SendBuffer(fd) == static_cast<int>(std::max<double>(window, kLeast)));
    CHECK(SendBuffer(fd) < kMost / 2);
    CHECK(queue.KeepShort(true));  // as it was
    connection->Send(1 << 20);     // still goes through
    CHECK_FALSE(queue.KeepShort(false));
    CHECK(Unsent(fd) == kLongUnsent);
    CHECK(SendBuffer(fd) > kMost / 2);  // 4 MiB, or what the kernel allows
  }
}

TEST_CASE("tcp queue: what has not changed is not set again") {
  const auto connection = Shaped("80mbit");
  if (connection == nullptr) return;
  const Fd& fd = connection->fd();
  TcpQueue queue(fd.get());
  connection->Send(1 << 20);
  REQUIRE(queue.KeepShort(true));
  const int other = 1000 << 10;  // shows whether it is set again
  REQUIRE(::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &other, sizeof(other)) == 0);
  const int seen = SendBuffer(fd);
  CHECK(queue.KeepShort(true));
  CHECK(SendBuffer(fd) == seen);
}

TEST_CASE("tcp queue: what a path carries in a round trip and half a millisecond, and a fast one is left alone") {
  for (const std::string rate : {"800mbit", "2000mbit", ""}) {
    CAPTURE(rate);
    const auto connection = rate.empty() ? std::make_unique<Connection>() : Shaped(rate);
    if (connection == nullptr) continue;
    const Fd& fd = connection->fd();
    TcpQueue queue(fd.get());
    connection->Send(16 << 20);
    const int before = SendBuffer(fd);
    const double window = connection->Window();
    CAPTURE(window);
    const bool held = queue.KeepShort(true);
    CHECK(held == (window <= kMost));
    CHECK(Unsent(fd) == (held ? kShortUnsent : kLongUnsent));
    CHECK(SendBuffer(fd) == (held ? static_cast<int>(std::max<double>(window, kLeast)) : before));
  }
}

}  // namespace byteps_like::testing
