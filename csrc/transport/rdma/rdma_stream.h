// A byte stream over eager messages, for the handshake and for chaos to wrap. A link takes the endpoint over afterwards
// (RdmaLink).
#pragma once

#include <memory>
#include <mutex>

#include "csrc/base/fd.h"
#include "csrc/transport/rdma/endpoint.h"
#include "csrc/transport/stream.h"

namespace byteps_like::rdma {

class RdmaStream final : public Stream {
 public:
  // `doorbell`: an eventfd.
  RdmaStream(std::unique_ptr<Endpoint> endpoint, Fd doorbell)
      : endpoint_(std::move(endpoint)), doorbell_(std::move(doorbell)), peer_(endpoint_->peer()) {}
  ~RdmaStream() override;

  Result<size_t> Read(std::byte* data, size_t size) override;
  Result<size_t> Write(std::span<const iovec> pieces) override;
  std::vector<int> fds() const override;
  void Shutdown() override;
  std::string peer() const override { return peer_; }
  std::unique_ptr<Link> BringLink(EventLoop& loop, LinkHandler& handler) override;

 private:
  size_t TakeBytes(std::byte* data, size_t size);
  size_t PutBytes(std::span<const iovec> pieces);
  template <typename Move>
  Result<size_t> MoveOrSleep(Move move);
  Status State() const;
  void Ring() const;

  std::mutex mutex_;  // Shutdown may come from any thread
  std::unique_ptr<Endpoint> endpoint_;
  const Fd doorbell_;  // for completions that a call in one direction finds for the other, whose event it has taken
  const std::string peer_;
  uint32_t read_of_front_ = 0;  // bytes
  bool reader_waits_ = false, writer_waits_ = false;
  bool shut_ = false;    // by us
  bool ended_ = false;   // by the peer
  bool spoilt_ = false;  // the peer sent a message that is not bytes
};

Result<std::unique_ptr<Stream>> MakeStream(std::unique_ptr<Endpoint> endpoint);

}  // namespace byteps_like::rdma
