#include "csrc/transport/tcp/listen_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace byteps_like {
namespace {

// Rounded up, so that a wait never ends just before its deadline.
int MillisecondsUntil(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

// How many of `fds` are ready; 0 when the deadline has passed.
Result<int> Poll(std::span<pollfd> fds, Deadline deadline) {
  for (;;) {
    const int count = ::poll(fds.data(), fds.size(), MillisecondsUntil(deadline));
    if (count > 0) return count;
    if (count < 0 && errno != EINTR) return SystemError("poll", errno);
    if (Clock::now() >= deadline) return 0;
  }
}

// Errors of one connection that was given up before it was accepted, not of the listener.
bool BelongsToPeer(int error) {
  return error == EAGAIN || error == EINTR || error == ECONNABORTED || error == EPROTO || error == ENETDOWN ||
         error == EHOSTUNREACH || error == ENETUNREACH;
}

}  // namespace

Result<bool> PollUntil(int fd, short events, Deadline deadline) {
  pollfd polled{fd, events, 0};
  auto count = Poll(std::span(&polled, 1), deadline);
  if (!count.ok()) return count.status();
  return *count > 0;
}

Result<std::unique_ptr<ListenSocket>> ListenSocket::Make(Fd socket, std::string url) {
  Fd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return SystemError("eventfd", errno);
  return std::unique_ptr<ListenSocket>(new ListenSocket(std::move(socket), std::move(stop), std::move(url)));
}

Result<Fd> ListenSocket::Accept(Deadline deadline) {
  while (!closed_.load()) {
    pollfd polled[] = {{socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    auto count = Poll(polled, deadline);
    if (!count.ok()) return count.status();
    if (closed_.load()) break;
    if (*count == 0) return Status(Code::kTimeout, "nobody connected to " + url_ + " in time");
    Fd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (peer) return peer;
    if (!BelongsToPeer(errno)) return SystemError("accept on " + url_, errno);
  }
  return Status(Code::kClosed, "the listener on " + url_ + " is closed");
}

void ListenSocket::Close() {
  if (closed_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace byteps_like
