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
  uint32_t mtu() const { return mtu_; }  // bytes: what this side carries at most; after Connect: what is used

  Status PostReceive(uint64_t id, std::byte* data, uint32_t size, uint32_t key);
  Status PostSend(verbs::SendWr& request);

  // To the state in which it sends and receives; packets carry `peer_mtu` bytes at most. When the peer's number is
  // known to rdma_cm: after a connection request or its answer.
  Status Connect(uint32_t peer_mtu);
  // From here on the peer may write where it has a key for; before, whatever it knows, the device refuses.
  Status AllowWrites();
  // Nothing is sent, and nothing from the peer lands in memory, once this has returned: the queue pair is gone. (In the
  // state of error a device may still be busy with the packet or the work request at hand.) Nothing may be posted, and
  // what was posted and not polled for never completes.
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
