#include "csrc/transport/memory/socket_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace byteps_like {
namespace {

constexpr size_t kMaxFds = 4;
constexpr char kPassed = 'b';  // the byte that a passed buffer's descriptor rides on

std::vector<Fd> TakeFds(msghdr* message) {
  std::vector<Fd> fds;
  for (cmsghdr* control = CMSG_FIRSTHDR(message); control != nullptr; control = CMSG_NXTHDR(message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

// Root may do anything to us anyway; as root, we admit only root.
bool MayTalk(uid_t peer) { return peer == ::geteuid() || peer == 0; }

}  // namespace

Status SendWithFds(int socket, const void* data, size_t size, std::initializer_list<int> fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  iovec piece{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.begin(), fds.size() * sizeof(int));
  const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(size)) return {};
  if (errno == EPIPE || errno == ECONNRESET) return Status(Code::kPeerLost, "pass a descriptor: the peer died");
  // The peer has not yet received the previous ones: only net.unix.max_dgram_qlen fit.
  if (errno == EAGAIN || errno == ETOOMANYREFS) return Status(Code::kCapacity, "pass a descriptor: try again");
  return SystemError("pass a descriptor", errno);
}

Result<Received> ReceiveWithFds(int socket, void* data, size_t size) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  iovec piece{data, size};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t bytes = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return Received{};
  if (bytes < 0) return SystemError("receive a descriptor", errno);
  Received received{static_cast<size_t>(bytes), TakeFds(&message)};
  if (bytes == 0) return Status(Code::kClosed, "the peer closed its unix socket");
  if ((message.msg_flags & MSG_TRUNC) != 0) return Status(Code::kCorrupt, "a message on a unix socket is too long");
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Status(Code::kCapacity, "a descriptor was passed, and none is free here (RLIMIT_NOFILE)");
  }
  return received;
}

Result<std::unique_ptr<SocketChannel>> SocketChannel::Make(Fd socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return SystemError("SO_PEERCRED", errno);
  if (!MayTalk(peer.uid)) {
    return Status(Code::kRefused, "shm pid " + std::to_string(peer.pid) + " belongs to user " +
                                      std::to_string(peer.uid) + ", not to us");
  }
  return std::unique_ptr<SocketChannel>(new SocketChannel(std::move(socket), peer.pid));
}

bool SocketChannel::alive() const {
  pollfd polled{socket_.get(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) <= 0 || (polled.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
}

Status SocketChannel::Pass(int fd) { return SendWithFds(socket_.get(), &kPassed, 1, {fd}); }

Result<Fd> SocketChannel::Take() {
  char byte = 0;
  auto received = ReceiveWithFds(socket_.get(), &byte, 1);
  if (!received.ok()) return received.status();
  if (received->bytes != 1 || byte != kPassed || received->fds.size() != 1) {
    return Status(Code::kCorrupt, peer() + " announced a shared buffer but passed none");
  }
  return std::move(received->fds.front());
}

}  // namespace byteps_like
