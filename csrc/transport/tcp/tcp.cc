// tcp: between hosts. Socket buffers are left to the kernel's own tuning; the unsent part is kept short, so that a
// higher priority waits behind few bytes.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "csrc/base/fd.h"
#include "csrc/transport/stream.h"
#include "csrc/transport/tcp/listen_socket.h"
#include "csrc/transport/tcp/tcp_address.h"
#include "csrc/transport/tcp/tcp_queue.h"
#include "csrc/wire/frame.h"

namespace byteps_like {
namespace {

constexpr int kKeepIdleSeconds = 20;
constexpr int kKeepIntervalSeconds = 10;
constexpr int kBacklog = 1024;
constexpr char kCongestionControl[] = "cubic";

constexpr std::string_view kScheme = "tcp://";

void SetInt(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof(value)); }

// Only wishes: a kernel that refuses one still carries the bytes.
void Tune(int fd) {
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCongestionControl, sizeof(kCongestionControl) - 1);
}

bool MeansPeerLost(int error) {
  return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == ECONNABORTED;
}

// An interrupted call must not pass for "nothing now": no event would follow.
template <typename Call>
ssize_t Retry(Call call) {
  for (;;) {
    const ssize_t result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

class TcpStream final : public Stream {
 public:
  TcpStream(Fd fd, const TcpAddress& address) : fd_(std::move(fd)), peer_("tcp " + address.text()), queue_(fd_.get()) {
    Tune(fd_.get());
  }
  ~TcpStream() override {
    Shutdown();
    Drain();
  }

  Result<size_t> Read(std::byte* data, size_t size) override {
    if (size == 0) return size_t{0};
    return Received(Retry([&] { return ::recv(fd_.get(), data, size, MSG_DONTWAIT); }));
  }

  Result<size_t> ReadAhead(std::byte* data, size_t size, std::span<std::byte> ahead) override {
    iovec pieces[] = {{data, size}, {ahead.data(), ahead.size()}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = std::size(pieces);
    return Received(Retry([&] { return ::recvmsg(fd_.get(), &message, MSG_DONTWAIT); }));
  }

  Result<size_t> Write(std::span<const iovec> pieces) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    const ssize_t bytes = Retry([&] { return ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL); });
    if (bytes >= 0) return static_cast<size_t>(bytes);
    return Failure("send to ");
  }

  std::vector<int> fds() const override { return {fd_.get()}; }
  void Shutdown() override { ::shutdown(fd_.get(), SHUT_RDWR); }
  std::string peer() const override { return peer_; }
  bool KeepShort(bool on) override { return queue_.KeepShort(on); }
  size_t Filling(size_t segment) const override { return FillingSends(segment); }
  void LimitQueue(uint32_t bytes) override { queue_.Limit(bytes); }
  // A host that vanished is found by the control plane within seconds; this is the last resort.
  void LimitSilence(double seconds) override {
    SetInt(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::clamp(seconds * 1e3, 0.0, 2e9)));
  }

 private:
  Result<size_t> Received(ssize_t bytes) const {
    if (bytes > 0) return static_cast<size_t>(bytes);
    if (bytes == 0) return Status(Code::kClosed, peer_ + " closed the connection");
    return Failure("receive from ");
  }
  Result<size_t> Failure(const char* what) const {
    const int error = errno;
    if (error == EAGAIN) return size_t{0};
    const Status status = SystemError(what + peer_, error);
    return MeansPeerLost(error) ? Status(Code::kPeerLost, status.message()) : status;
  }

  // Closing with bytes unread would send a reset, which can overtake our last bytes: throw away the bytes that are
  // here.
  void Drain() {
    std::array<std::byte, 64u << 10> nowhere;  // MSG_TRUNC would need none, but thread checkers take it for a write
    for (int i = 0; i < 256 && ::recv(fd_.get(), nowhere.data(), nowhere.size(), MSG_DONTWAIT) > 0; ++i) {
    }
  }

  const Fd fd_;
  const std::string peer_;
  TcpQueue queue_;
};

Result<std::unique_ptr<Stream>> ConnectTo(const TcpAddress& address, Deadline deadline) {
  const std::string what = "connect to tcp " + address.text();
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return SystemError(what, errno);
  if (::connect(fd.get(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS) return SystemError(what, errno);
    auto ready = PollUntil(fd.get(), POLLOUT, deadline);
    if (!ready.ok()) return ready.status();
    if (!*ready) return Status(Code::kTimeout, what + ": no answer in time");
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return SystemError(what, error);
  }
  return std::unique_ptr<Stream>(std::make_unique<TcpStream>(std::move(fd), address));
}

Result<TcpAddress> NameOf(int fd, int (*get_name)(int, sockaddr*, socklen_t*)) {
  TcpAddress address;
  address.size = sizeof(address.storage);
  if (get_name(fd, address.get(), &address.size) != 0) return SystemError("name of a tcp socket", errno);
  return address;
}

class TcpListener final : public Listener {
 public:
  explicit TcpListener(std::unique_ptr<ListenSocket> socket) : socket_(std::move(socket)) {}
  ~TcpListener() override { Close(); }

  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override {
    for (;;) {
      auto fd = socket_->Accept(deadline);
      if (!fd.ok()) return fd.status();
      auto peer = NameOf(fd->get(), ::getpeername);
      if (!peer.ok()) continue;  // it hung up at once
      return std::unique_ptr<Stream>(std::make_unique<TcpStream>(std::move(*fd), *peer));
    }
  }

  std::string url() const override { return socket_->url(); }
  void Close() override { socket_->Close(); }

 private:
  const std::unique_ptr<ListenSocket> socket_;
};

Result<std::unique_ptr<Listener>> ListenOn(const TcpAddress& address) {
  const std::string what = "listen on tcp " + address.text();
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return SystemError(what, errno);
  SetInt(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), address.get(), address.size) != 0) return SystemError(what, errno);
  if (::listen(fd.get(), kBacklog) != 0) return SystemError(what, errno);
  auto bound = NameOf(fd.get(), ::getsockname);
  if (!bound.ok()) return bound.status();
  auto socket = ListenSocket::Make(std::move(fd), std::string(kScheme) + bound->text());
  if (!socket.ok()) return socket.status();
  return std::unique_ptr<Listener>(std::make_unique<TcpListener>(std::move(*socket)));
}

}  // namespace

Result<std::unique_ptr<Stream>> ConnectTcp(const std::string& url, Deadline deadline) {
  auto addresses = ResolveTcp(url.substr(kScheme.size()), false);
  if (!addresses.ok()) return addresses.status();
  Status last;
  for (const TcpAddress& address : *addresses) {
    auto stream = ConnectTo(address, deadline);
    if (stream.ok()) return stream;
    last = stream.status();
  }
  return last;
}

Result<std::unique_ptr<Listener>> ListenTcp(const std::string& url) {
  auto addresses = ResolveTcp(url.substr(kScheme.size()), true);
  if (!addresses.ok()) return addresses.status();
  return ListenOn(addresses->front());
}

}  // namespace byteps_like
