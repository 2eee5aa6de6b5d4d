// A stream over a socket that is connected and non-blocking: what TCP and Unix sockets have in common.
#pragma once

#include <memory>
#include <string>

#include "csrc/base/fd.h"
#include "csrc/transport/stream.h"

namespace byteps_like {

class SocketStream : public Stream {
 public:
  SocketStream(Fd fd, std::string peer) : fd_(std::move(fd)), peer_(std::move(peer)) {}
  ~SocketStream() override;

  bool peeks() const override { return true; }
  Result<size_t> Peek(std::span<std::byte> room) override;
  Result<size_t> Read(std::byte* data, size_t size) override;
  Result<size_t> ReadAhead(std::byte* data, size_t size, std::span<std::byte> ahead) override;
  Result<size_t> Write(std::span<const iovec> pieces) override;
  std::vector<int> fds() const override { return {fd_.get()}; }
  void Shutdown() override;
  std::string peer() const override { return peer_; }

 protected:
  int fd() const { return fd_.get(); }

 private:
  Result<size_t> Received(ssize_t bytes) const;
  Result<size_t> Failure(const char* what) const;
  void Drain();

  const Fd fd_;
  const std::string peer_;
};

// A Unix socket of this host that listens at `path`. `name` gets the address that the kernel has given to this end, by
// which who listens knows the connection. Never blocks.
Result<std::unique_ptr<Stream>> ConnectUnix(const std::string& path, std::string& name);

}  // namespace byteps_like
