#include <arpa/inet.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/transport/rdma/endpoint.h"

namespace byteps_like::rdma {
namespace {

constexpr uint32_t kCreditMessages = kWindow / 2;
constexpr uint32_t kCreditSlots = kSlots / 2;
}  // namespace

uint32_t Endpoint::LeastBusy() const {
  uint32_t best = 0;
  for (uint32_t i = 1; i < lanes_.size(); ++i) {
    if (lanes_[i].bytes_under_way < lanes_[best].bytes_under_way) best = i;
  }
  return best;
}

// Counts a header's worth for every message, so that small ones are spread as well.
Status Endpoint::Post(uint32_t lane, verbs::SendWr& request, verbs::Sge piece, uint32_t tag) {
  request.wr_id = sent_;
  request.sg_list = &piece;
  request.num_sge = piece.length > 0 ? 1 : 0;
  request.imm_data = htonl(sent_);
  request.send_flags |= verbs::kSignaled;
  if (Status posted = lanes_[lane].pair->PostSend(request); !posted.ok()) {
    Break(Code::kSystem, posted.message());
    return failure_;
  }
  const uint32_t weight = piece.length + kHeaderBytes;
  sends_[sent_ % kDepth] = {true, static_cast<uint8_t>(lane), sent_, weight, tag};
  lanes_[lane].bytes_under_way += weight;
  bytes_under_way_ += weight;
  ++sent_;
  ++under_way_;
  return {};
}

void Endpoint::OnSent(uint32_t number) {
  Sent& sent = sends_[number % kDepth];
  sent.under_way = false;
  lanes_[sent.lane].bytes_under_way -= sent.bytes;
  bytes_under_way_ -= sent.bytes;
  --under_way_;
  if (sent.tag != kNoTag && user_ != nullptr) user_->OnDelivered(sent.tag);
}

std::byte* Endpoint::content() {
  return eager_.data() + size_t{sent_ % kDepth} * kEagerBytes + kEagerSkip + sizeof(Envelope);
}

Status Endpoint::SendEager(const Envelope& envelope, uint32_t bytes, uint32_t tag) {
  if (!failure_.ok()) return failure_;
  std::byte* const message = content() - sizeof(Envelope);
  Envelope full = envelope;
  full.consumed = told_consumed_ = next_;
  full.freed = told_freed_ = freed_;
  std::memcpy(message, &full, sizeof(full));
  const uint32_t lane = LeastBusy();
  verbs::SendWr request{};
  request.opcode = verbs::kSendWithImm;
  const auto size = static_cast<uint32_t>(sizeof(Envelope)) + bytes;
  // Memory of ours. That of handlers may be another device's, which the processor can't read.
  if (size <= lanes_[lane].pair->inline_bytes()) request.send_flags = verbs::kInline;
  return Post(lane, request, {reinterpret_cast<uint64_t>(message), size, ports_[lanes_[lane].port].eager->lkey}, tag);
}

bool Endpoint::may_send(const Piece& piece) const {
  if (!may_send() || peer_slots_ == 0 || (piece.to == 0 && slots_used_ - slots_freed_ >= kSlots)) return false;
  if (piece.keys != nullptr) return true;
  const uint32_t number = copies_by_[copied_ % kSlots];
  return !sends_[number % kDepth].under_way || sends_[number % kDepth].number != number;
}

Status Endpoint::Send(const Piece& piece, uint32_t tag) {
  if (!failure_.ok()) return failure_;
  const uint32_t lane = LeastBusy();
  const uint32_t port = lanes_[lane].port;
  verbs::Sge from{reinterpret_cast<uint64_t>(piece.data), piece.bytes, 0};
  if (piece.keys != nullptr) {
    from.lkey = (*piece.keys)[port].local;
  } else {
    auto copy = Copy(piece);
    if (!copy.ok()) {
      Break(copy.status().code(), copy.status().message());
      return failure_;
    }
    from.addr = reinterpret_cast<uint64_t>(*copy);
    from.lkey = ports_[port].copies->lkey;
  }
  verbs::SendWr request{};
  request.opcode = verbs::kRdmaWriteWithImm;
  if (piece.to != 0) {
    request.wr.rdma = {piece.to, piece.peer_keys[lane]};
  } else {
    request.wr.rdma = {peer_slots_ + uint64_t{slots_used_++ % kSlots} * kSlotBytes, lanes_[lane].peer_slots_key};
  }
  return Post(lane, request, from, tag);
}

Result<std::byte*> Endpoint::Copy(const Piece& piece) {
  if (Status made = MakeCopies(); !made.ok()) return made;
  const uint32_t index = copied_++ % kSlots;
  copies_by_[index] = sent_;
  std::byte* const copy = copies_.data() + size_t{index} * kSlotBytes;
  std::memcpy(copy, piece.data, piece.bytes);
  return copy;
}

Status Endpoint::MakeCopies() {
  if (copies_.data() != nullptr) return {};
  Block copies(kSlots * kSlotBytes);
  if (copies.data() == nullptr) return SystemError("memory for a link to " + peer_, ENOMEM);
  for (Port& port : ports_) {
    auto region = port.device->Register(copies.data(), copies.size(), verbs::kLocalWrite);
    if (!region.ok()) return region.status();
    port.copies = std::move(*region);
  }
  copies_ = std::move(copies);
  return {};
}

Status Endpoint::GiveCredit() {
  if (next_ - told_consumed_ < kCreditMessages && freed_ - told_freed_ < kCreditSlots) return {};
  if (!has_room()) return {};  // a completion follows, and then this is asked again
  return SendEager({.kind = Kind::kCredit}, 0, kNoTag);
}

Status Endpoint::SendFin() {
  if (!has_room()) return Status(Code::kCapacity, peer_ + ": no room to send the end of the stream");
  return SendEager({.kind = Kind::kFin}, 0, kNoTag);
}

// Takes no message's number and no receive of the peer's: a peer that is stopped is not overrun.
void Endpoint::Probe() {
  if (peer_slots_ == 0 || dead_) return;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (lane.probing || lane.bytes_under_way > 0) continue;
    verbs::SendWr request{};
    request.wr_id = kProbe | i;
    request.opcode = verbs::kRdmaWrite;
    request.send_flags = verbs::kSignaled;
    request.wr.rdma = {peer_slots_, lane.peer_slots_key};
    if (Status posted = lane.pair->PostSend(request); !posted.ok()) return Break(Code::kSystem, posted.message());
    lane.probing = true;
  }
}

void Endpoint::Fail() {
  if (std::exchange(dead_, true)) return;
  Break(Code::kClosed, "we closed the connection");
  for (const Lane& lane : lanes_) {
    if (lane.pair == nullptr) continue;
    lane.pair->End();
    verbs::Lib().cm_disconnect(lane.pair->id());
  }
}

}  // namespace byteps_like::rdma
