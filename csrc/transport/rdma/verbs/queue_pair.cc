#include "csrc/transport/rdma/verbs/queue_pair.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

namespace byteps_like::rdma {
namespace {

using verbs::Lib;

constexpr uint32_t kWishedInline = 188;  // a header and an envelope; beyond it, fetching costs the device less
constexpr uint8_t kRetries = 6;          // the maximum is 7, but rdma_rxe takes that as "for ever"
// No receive is ever missing (wire.h), so this is about a peer that breaks the rules: 6 times 10 ms.
constexpr uint8_t kReceiverRetries = 6;
constexpr uint8_t kReceiverTimer = 20;

constexpr uint32_t BytesOfMtu(int mtu) { return 128u << mtu; }
constexpr int MtuOfBytes(uint32_t bytes) { return std::bit_width(bytes) - 8; }
static_assert(BytesOfMtu(5) == 4096 && MtuOfBytes(4096) == 5 && MtuOfBytes(256) == 1);

verbs::Qp* Create(const Device& device, const Completions& completions, uint32_t depth, uint32_t* inline_bytes) {
  verbs::QpInitAttr attr{};
  attr.send_cq = attr.recv_cq = completions.cq();
  attr.qp_type = verbs::kReliableConnection;
  for (const uint32_t wished : {kWishedInline, 0u}) {  // some devices refuse amounts that they can't give
    attr.cap = {depth + 1, depth, 1, 1, wished};
    if (verbs::Qp* const qp = Lib().create_qp(device.pd(), &attr); qp != nullptr) {
      *inline_bytes = attr.cap.max_inline_data;
      return qp;
    }
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::Make(CmId id, const Device& device, Completions& completions,
                                                   const Options& options, uint32_t depth) {
  uint32_t inline_bytes = 0;
  verbs::Qp* const qp = Create(device, completions, depth, &inline_bytes);
  if (qp == nullptr) return SystemError("create a queue pair on " + device.name(), errno);
  std::unique_ptr<QueuePair> pair(new QueuePair(std::move(id), qp, options, inline_bytes));
  verbs::PortAttr port{};
  if (Lib().query_port(device.context(), pair->id_->port_num, &port) != 0) {
    return SystemError("query port " + std::to_string(pair->id_->port_num) + " of " + device.name(), errno);
  }
  pair->mtu_ = std::min(BytesOfMtu(port.active_mtu), options.mtu == 0 ? 4096 : options.mtu);
  if (Status checked = pair->CheckGid(device); !checked.ok()) return checked;
  if (Status moved = pair->MoveTo(verbs::kInit); !moved.ok()) return moved;
  return pair;
}

QueuePair::~QueuePair() { End(); }

void QueuePair::End() {
  if (qp_ != nullptr) Lib().destroy_qp(std::exchange(qp_, nullptr));
}

// rdma_cm has told the peer which address packets come from; another GID of that address (RoCE v1 or v2) is ours to
// choose, a GID of another address is not.
Status QueuePair::CheckGid(const Device& device) const {
  if (options_.gid < 0) return {};
  auto address = device.AddressOfGid(id_->port_num, options_.gid);
  if (!address.ok()) return address.status();
  if (SameHost(*address->get(), id_->route.local.any)) return {};
  const std::string those = device.GidsOf(id_->port_num, id_->route.local.any);
  return Status(Code::kInvalid, "gid=" + std::to_string(options_.gid) + " of " + device.name() + " is " +
                                    address->text() + ", which is not the address of this end" +
                                    (those.empty() ? "" : "; GIDs of that address: " + those));
}

Status QueuePair::PostReceive(uint64_t id, std::byte* data, uint32_t size, uint32_t key) {
  verbs::Sge piece{reinterpret_cast<uint64_t>(data), size, key};
  verbs::RecvWr request{id, nullptr, &piece, 1};
  verbs::RecvWr* bad = nullptr;
  const int error = verbs::PostRecv(qp_, &request, &bad);
  return error == 0 ? Status() : SystemError("post a receive", error);
}

Status QueuePair::PostSend(verbs::SendWr& request) {
  verbs::SendWr* bad = nullptr;
  const int error = verbs::PostSend(qp_, &request, &bad);
  return error == 0 ? Status() : SystemError("post a send", error);
}

Status QueuePair::Connect(uint32_t peer_mtu) {
  mtu_ = std::min(mtu_, peer_mtu);
  for (const verbs::QpState state : {verbs::kReadyToReceive, verbs::kReadyToSend}) {
    if (Status moved = MoveTo(state); !moved.ok()) return moved;
  }
  return {};
}

Status QueuePair::AllowWrites() {
  verbs::QpAttr attr{};
  attr.qp_access_flags = verbs::kLocalWrite | verbs::kRemoteWrite;
  const int error = Lib().modify_qp(qp_, &attr, verbs::kMaskAccessFlags);
  return error == 0 ? Status() : SystemError("let the peer of a queue pair write", error);
}

Status QueuePair::MoveTo(verbs::QpState state) {
  const std::string what = "move a queue pair to state " + std::to_string(state);
  verbs::QpAttr attr{};
  attr.qp_state = state;
  int mask = 0;
  if (Lib().cm_init_qp_attr(id_.get(), &attr, &mask) != 0) return SystemError(what + ": rdma_init_qp_attr", errno);
  if ((mask & verbs::kMaskAccessFlags) != 0) attr.qp_access_flags = verbs::kLocalWrite;
  if ((mask & verbs::kMaskPathMtu) != 0) {
    mtu_ = std::min(mtu_, BytesOfMtu(attr.path_mtu));
    attr.path_mtu = MtuOfBytes(mtu_);
    attr.min_rnr_timer = kReceiverTimer;
    if (options_.gid >= 0) attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(options_.gid);
  }
  if ((mask & verbs::kMaskTimeout) != 0) {
    attr.timeout = options_.ack_timeout;
    attr.retry_cnt = kRetries;
    attr.rnr_retry = kReceiverRetries;
  }
  const int error = Lib().modify_qp(qp_, &attr, mask);
  return error == 0 ? Status() : SystemError(what, error);
}

}  // namespace byteps_like::rdma
