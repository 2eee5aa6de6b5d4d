// What lies in the kernel for a connection: socket options before and after, on lines of a known rate.
#include "csrc/transport/tcp/tcp_queue.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <linux/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <cstdlib>
#include <optional>

#include "csrc/base/fd.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr int kLongUnsent = kDefaultKernelQueue, kShortUnsent = 64 << 10;

int Option(const Fd& fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  REQUIRE(::getsockopt(fd.get(), level, name, &value, &size) == 0);
  return value;
}
int Unsent(const Fd& fd) { return Option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT); }

// Bytes per second; nothing: as fast as TCP likes.
std::optional<double> Pace(const Fd& fd) {
  uint64_t value = 0;
  socklen_t size = sizeof(value);
  REQUIRE(::getsockopt(fd.get(), SOL_SOCKET, SO_MAX_PACING_RATE, &value, &size) == 0);
  if (value >= UINT32_MAX) return std::nullopt;
  return static_cast<double>(value);
}

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

  // Sends as much as goes, and asks the queue from time to time, as long as `goes_on` says of its answers.
  void Fill(const std::function<bool(bool)>& goes_on, TcpQueue& queue, bool on = true) {
    std::atomic<bool> over{false};
    std::thread writer([&] {
      const Bytes data(64 << 10);
      while (!over) sent_ += static_cast<uint64_t>(std::max<ssize_t>(::write(out_.get(), data.data(), data.size()), 0));
    });
    const auto limit = In(5);
    do std::this_thread::sleep_for(std::chrono::milliseconds(20));
    while (goes_on(queue.KeepShort(on)) && Clock::now() < limit);
    over = true;
    writer.join();
  }
  tcp_info Info() const {
    tcp_info info{};
    socklen_t size = sizeof(info);
    REQUIRE(::getsockopt(out_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    return info;
  }
  uint64_t sent() const { return sent_; }

 private:
  Fd out_, in_;
  std::atomic<uint64_t> sent_{0};
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

TEST_CASE("tcp queue: little lies unsent, and no pace where nothing is known of the path") {
  const Connection connection;
  TcpQueue queue(connection.fd().get());
  for (const bool on : {true, true, false}) {
    CHECK_FALSE(queue.KeepShort(on));
    CHECK(Unsent(connection.fd()) == kLongUnsent);
    CHECK_FALSE(Pace(connection.fd()));
  }
}

TEST_CASE("tcp queue: what may lie unsent is settable, and may be any amount") {
  const Connection connection;
  TcpQueue queue(connection.fd().get());
  queue.Limit(100'000);
  CHECK(Unsent(connection.fd()) == 100'000);
  queue.Limit(0);
  CHECK(static_cast<uint32_t>(Unsent(connection.fd())) == UINT32_MAX);
}

TEST_CASE("tcp queue: a line's queue is found, emptied and left empty, and the connection is let go again") {
  for (const double rate : {100e6, 400e6}) {
    CAPTURE(rate);
    const auto connection = Shaped(std::to_string(static_cast<int>(rate / 1e6)) + "mbit");
    if (connection == nullptr) return;
    const Fd& fd = connection->fd();
    TcpQueue queue(fd.get());
    bool paced = false;
    const uint64_t before = connection->sent();
    const auto begin = Clock::now();
    connection->Fill([&](bool now) { return !(paced = now); }, queue);
    REQUIRE(paced);
    REQUIRE(Pace(fd));
    // Where other programs take the processor, the line is not full, and what it carried is all that can be known.
    const double carried = static_cast<double>(connection->sent() - before) / SecondsSince(begin);
    CHECK(*Pace(fd) > 0.7 * std::min(rate / 8, carried));
    CHECK(Unsent(fd) == kShortUnsent);
    // Where other programs take the processor, the rate may be measured too high. A queue that stands then corrects it.
    int calls = 0;
    const auto too_fast = [&] {
      const tcp_info info = connection->Info();
      return *Pace(fd) >= 0.95 * rate / 8 && info.tcpi_rtt > info.tcpi_min_rtt + 1000;
    };
    connection->Fill([&](bool now) { return (paced = now) && (++calls < 15 || too_fast()); }, queue);
    REQUIRE(paced);
    CHECK_FALSE(too_fast());
    CHECK(connection->Info().tcpi_rtt < 10'000);  // where TCP by itself fills 20 ms
    CHECK_FALSE(queue.KeepShort(false));
    CHECK_FALSE(Pace(fd));
    CHECK(Unsent(fd) == kLongUnsent);
    CHECK(queue.KeepShort(true));  // the rate is known
  }
}

TEST_CASE("tcp queue: a path that is faster than any line that matters is left alone") {
  Connection connection;
  TcpQueue queue(connection.fd().get());
  int calls = 0, paced = 0;
  const auto begin = Clock::now();
  connection.Fill([&](bool now) { return (paced += now ? 1 : 0), ++calls < 12; }, queue);
  const double rate =
      static_cast<double>(connection.sent()) / std::chrono::duration<double>(Clock::now() - begin).count();
  if (rate > 700e6) CHECK(paced == 0);
}

}  // namespace byteps_like::testing
