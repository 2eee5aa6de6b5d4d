// tcp: between hosts. Socket buffers are left to the kernel's own tuning; the unsent part is kept short, so that a
// higher priority waits behind few bytes.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "csrc/base/fd.h"
#include "csrc/transport/stream.h"
#include "csrc/transport/tcp/listen_socket.h"
#include "csrc/transport/tcp/socket_stream.h"
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

class TcpStream final : public SocketStream {
 public:
  TcpStream(Fd fd, const TcpAddress& address)
      : SocketStream(std::move(fd), "tcp " + address.text()), queue_(SocketStream::fd()) {
    Tune(SocketStream::fd());
  }

  bool KeepShort(bool on) override { return queue_.KeepShort(on); }
  size_t Filling(size_t segment) const override { return FillingSends(segment); }
  void LimitQueue(uint32_t bytes) override { queue_.Limit(bytes); }
  // A host that vanished is found by the control plane within seconds; this is the last resort.
  void LimitSilence(double seconds) override {
    SetInt(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::clamp(seconds * 1e3, 0.0, 2e9)));
  }

 private:
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
