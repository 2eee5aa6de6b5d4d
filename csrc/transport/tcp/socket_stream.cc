#include "csrc/transport/tcp/socket_stream.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace byteps_like {
namespace {

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

}  // namespace

SocketStream::~SocketStream() {
  SocketStream::Shutdown();
  Drain();
}

Result<size_t> SocketStream::Peek(std::span<std::byte> room) {
  return Received(Retry([&] { return ::recv(fd_.get(), room.data(), room.size(), MSG_DONTWAIT | MSG_PEEK); }));
}

Result<size_t> SocketStream::Read(std::byte* data, size_t size) {
  if (size == 0) return size_t{0};
  return Received(Retry([&] { return ::recv(fd_.get(), data, size, MSG_DONTWAIT); }));
}

Result<size_t> SocketStream::ReadAhead(std::byte* data, size_t size, std::span<std::byte> ahead) {
  iovec pieces[] = {{data, size}, {ahead.data(), ahead.size()}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = std::size(pieces);
  return Received(Retry([&] { return ::recvmsg(fd_.get(), &message, MSG_DONTWAIT); }));
}

Result<size_t> SocketStream::Write(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  const ssize_t bytes = Retry([&] { return ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL); });
  if (bytes >= 0) return static_cast<size_t>(bytes);
  return Failure("send to ");
}

void SocketStream::Shutdown() { ::shutdown(fd_.get(), SHUT_RDWR); }

Result<size_t> SocketStream::Received(ssize_t bytes) const {
  if (bytes > 0) return static_cast<size_t>(bytes);
  if (bytes == 0) return Status(Code::kClosed, peer_ + " closed the connection");
  return Failure("receive from ");
}

Result<size_t> SocketStream::Failure(const char* what) const {
  const int error = errno;
  if (error == EAGAIN) return size_t{0};
  const Status status = SystemError(what + peer_, error);
  return MeansPeerLost(error) ? Status(Code::kPeerLost, status.message()) : status;
}

// Closing with bytes unread would send a reset, which can overtake our last bytes: throw away the bytes that are here.
void SocketStream::Drain() {
  std::array<std::byte, 64u << 10> nowhere;  // MSG_TRUNC would need none, but thread checkers take it for a write
  for (int i = 0; i < 256 && ::recv(fd_.get(), nowhere.data(), nowhere.size(), MSG_DONTWAIT) > 0; ++i) {
  }
}

Result<std::unique_ptr<Stream>> ConnectUnix(const std::string& path, std::string& name) {
  sockaddr_un to{}, own{};
  if (path.size() >= sizeof(to.sun_path)) return Status(Code::kInvalid, "the path of a socket is too long: " + path);
  own.sun_family = to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), path.size());
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return SystemError("connect to " + path, errno);
  // Bound to nothing but the family, it gets a name that no other socket has (unix(7), autobind).
  socklen_t size = sizeof(own);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own.sun_family)) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    return SystemError("connect to " + path, errno);
  }
  name.assign(own.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
  return std::unique_ptr<Stream>(std::make_unique<SocketStream>(std::move(fd), "unix " + path));
}

}  // namespace byteps_like
