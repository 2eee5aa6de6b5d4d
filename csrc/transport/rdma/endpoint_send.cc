#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

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
  request.send_flags = verbs::kSignaled;
  if (piece.length <= lanes_[lane].pair->inline_bytes()) request.send_flags |= verbs::kInline;
  if (Status posted = lanes_[lane].pair->PostSend(request); !posted.ok()) {
    Break(Code::kSystem, posted.message());
    return failure_;
  }
  const uint32_t weight = piece.length + kHeaderBytes;
  sends_[sent_ % kDepth] = {true, static_cast<uint8_t>(lane), weight, tag};
  lanes_[lane].bytes_under_way += weight;
  ++sent_;
  ++under_way_;
  return {};
}

void Endpoint::OnSent(uint32_t number) {
  Sent& sent = sends_[number % kDepth];
  sent.under_way = false;
  lanes_[sent.lane].bytes_under_way -= sent.bytes;
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
  return Post(lane, request, {reinterpret_cast<uint64_t>(message), size, ports_[lanes_[lane].port].eager->lkey}, tag);
}

Status Endpoint::SendPiece(const std::byte* data, uint32_t bytes, std::span<const uint32_t> keys, uint64_t to,
                           std::span<const uint32_t> peer_keys, uint32_t tag) {
  if (!failure_.ok()) return failure_;
  const uint32_t lane = LeastBusy();
  verbs::SendWr request{};
  request.opcode = verbs::kRdmaWriteWithImm;
  request.wr.rdma = {to, peer_keys[lane]};
  return Post(lane, request, {reinterpret_cast<uint64_t>(data), bytes, keys[lanes_[lane].port]}, tag);
}

Status Endpoint::SendToSlot(const std::byte* data, uint32_t bytes, std::span<const uint32_t> keys, uint32_t tag) {
  std::array<uint32_t, kMaxQueuePairs> peer_keys{};
  for (size_t i = 0; i < lanes_.size(); ++i) peer_keys[i] = lanes_[i].peer_slots_key;
  const uint64_t to = peer_slots_ + uint64_t{slots_used_++ % kSlots} * kSlotBytes;
  return SendPiece(data, bytes, keys, to, std::span(peer_keys.data(), lanes_.size()), tag);
}

// A slot of the peer's that is free was delivered before, so the copy for it may be overwritten: what the device might
// send again is a duplicate, which the peer's drops.
Status Endpoint::SendToSlot(const std::byte* data, uint32_t bytes, uint32_t tag) {
  if (Status made = MakeCopies(); !made.ok()) return made;
  std::byte* const copy = copies_.data() + size_t{slots_used_ % kSlots} * kSlotBytes;
  std::memcpy(copy, data, bytes);
  std::array<uint32_t, kMaxQueuePairs> keys{};
  for (size_t i = 0; i < ports_.size(); ++i) keys[i] = ports_[i].copies->lkey;
  return SendToSlot(copy, bytes, std::span(keys.data(), ports_.size()), tag);
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
  if (!has_room()) return Status(Code::kCapacity, peer_ + ": no room for the end of the stream");
  return SendEager({.kind = Kind::kFin}, 0, kNoTag);
}

void Endpoint::Fail() {
  Break(Code::kClosed, "we closed the connection");
  for (const Lane& lane : lanes_) {
    if (lane.pair == nullptr) continue;
    lane.pair->Fail();
    verbs::Lib().cm_disconnect(lane.pair->id());
  }
}

}  // namespace byteps_like::rdma
