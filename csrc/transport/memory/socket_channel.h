// The unix socket beside the rings of a shm stream: its end is the peer's death, and descriptors travel through it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/transport/memory/ring_stream.h"

namespace byteps_like {

// One SOCK_SEQPACKET message with up to a few descriptors. Neither blocks.
Status SendWithFds(int socket, const void* data, size_t size, std::initializer_list<int> fds);

struct Received {
  size_t bytes = 0;
  std::vector<Fd> fds;
};
// kClosed at the end of the stream; 0 bytes and no fds if there is no message; kCorrupt if the message was cut;
// kCapacity if this process may have no more descriptors: those that were passed are lost.
Result<Received> ReceiveWithFds(int socket, void* data, size_t size);

class SocketChannel final : public PeerChannel {
 public:
  // Refuses a peer of another user that isn't root (kRefused).
  static Result<std::unique_ptr<SocketChannel>> Make(Fd socket);

  bool alive() const override;
  int fd() const override { return socket_.get(); }
  Status Pass(int fd) override;
  Result<Fd> Take() override;
  std::string peer() const override { return "shm pid " + std::to_string(pid_); }

 private:
  SocketChannel(Fd socket, pid_t pid) : socket_(std::move(socket)), pid_(pid) {}

  const Fd socket_;
  const pid_t pid_;
};

}  // namespace byteps_like
