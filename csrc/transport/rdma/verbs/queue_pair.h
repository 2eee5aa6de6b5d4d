// One reliable connection: a queue pair, and the rdma_cm identifier that connects it.
#pragma once

#include <memory>

#include "csrc/transport/rdma/options.h"
#include "csrc/transport/rdma/verbs/cm.h"
#include "csrc/transport/rdma/verbs/completions.h"

namespace byteps_like::rdma {

class QueuePair {
 public:
  // On the identifier's device, with room for `depth` sends, a probe and `depth` receives; ready for receives to be
  // posted. `gid` and `mtu` of the options apply. kSystem, kInvalid.
  static Result<std::unique_ptr<QueuePair>> Make(CmId id, const Device& device, Completions& completions,
                                                 const Options& options, uint32_t depth);
  ~QueuePair();

  verbs::CmId* id() const { return id_.get(); }
  uint32_t number() const { return qp_->qp_num; }
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint32_t mtu() const { return mtu_; }  // bytes: the most that this side carries; after Connect: the size in use

  Status PostReceive(uint64_t id, std::byte* data, uint32_t size, uint32_t key);
  Status PostSend(verbs::SendWr& request);

  // Moves it to the state in which it sends and receives; packets carry `peer_mtu` bytes at most. Call it when rdma_cm
  // knows the peer's number: after a connection request or its answer.
  Status Connect(uint32_t peer_mtu);
  // From here on the peer may write to memory for which it has a key; before, the device refuses all writes, even with
  // a valid key.
  Status AllowWrites();
  // Nothing is sent, and nothing from the peer lands in memory, once this has returned: the queue pair is gone. (In the
  // state of error a device may still be busy with the packet or the work request at hand.) Nothing may be posted, and
  // work requests that were not polled for never complete.
  void End();

 private:
  QueuePair(CmId id, verbs::Qp* qp, const Options& options, uint32_t inline_bytes)
      : id_(std::move(id)), qp_(qp), options_(options), inline_bytes_(inline_bytes) {}
  Status CheckGid(const Device& device) const;
  Status MoveTo(verbs::QpState state);

  const CmId id_;
  verbs::Qp* qp_;  // nullptr after End
  const Options options_;
  const uint32_t inline_bytes_;
  uint32_t mtu_ = 4096;
};

}  // namespace byteps_like::rdma
