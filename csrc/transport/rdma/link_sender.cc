#include "csrc/transport/rdma/link_sender.h"

#include <algorithm>
#include <cstring>

namespace byteps_like::rdma {
namespace {

// The most bytes that may be under way when the next frame is asked for: those of a 400 Gb/s line in 20 us. Messages in
// the device's queue can't be overtaken.
constexpr uint64_t kUnderWay = 1u << 20;
constexpr uint32_t kLeastPiece = 64u << 10;  // smaller ones are not spread over queue pairs
constexpr uint32_t kMostPiece = 1u << 20;
constexpr auto kKeepPatience = std::chrono::milliseconds(100);

// The frames that a message carries, for OnDelivered.
uint32_t Tag(uint32_t first, uint32_t count) { return (first & 0xffff) | (count << 16); }

}  // namespace

LinkSender::LinkSender(Link& link, Endpoint& endpoint, MemoryKeys& keys, LinkHandler& handler)
    : link_(link), endpoint_(endpoint), keys_(keys), handler_(handler), peer_offers_(endpoint.peer()) {
  endpoint_.SetUser(this);
}

Result<bool> LinkSender::Send(size_t budget, const bool& stop) {
  uint64_t sent = endpoint_.bytes_under_way();
  const uint64_t limit = sent + budget;
  blocked_ = false;
  while (!stop) {
    auto more = Step();
    if (!more.ok() || !*more) return more;
    if (endpoint_.bytes_under_way() >= limit) return true;
  }
  return false;
}

// One message; false: nothing to send, or no room.
Result<bool> LinkSender::Step() {
  if (peer_offers_.owes() && !(in_pieces_ && !has_header_)) {
    for (const Notice& answer : peer_offers_.TakeAnswers()) to_announce_.push_back(answer);
  }
  blocked_ = !endpoint_.may_send() || (in_pieces_ && !has_header_ && !has_notices() && !endpoint_.may_send(piece_));
  if (blocked_) return false;
  if (!has_notices() && (has_header_ || !in_pieces_)) return SendHeaders();
  Status sent = has_notices() ? SendNotice() : SendPiece();
  if (!sent.ok()) return sent;
  return true;
}

Status LinkSender::SendNotice() {
  const Kind kind = to_announce_[announced_].kind;
  std::memcpy(endpoint_.content(), &to_announce_[announced_++].place, sizeof(PlaceOffer));
  if (announced_ == to_announce_.size()) {
    to_announce_.clear();
    announced_ = 0;
  }
  if (kind == Kind::kOffer) offers_sent_.Add(1);
  if (kind == Kind::kWithdrawn) peer_offers_.Answered();
  return endpoint_.SendEager({.kind = kind}, sizeof(PlaceOffer), kNoTag);
}

bool LinkSender::Begin() {
  next_ = Outgoing{};
  if (!handler_.NextFrame(link_, next_)) return false;
  if (next_.header.type == FrameType::kForget) {  // the peer may free what it has offered for this key
    for (const uint64_t parity : {0, 1}) peer_offers_.Forget({FrameType::kPush, next_.header.key, parity});
  }
  next_.header.payload_crc = 0;  // the device checks what it carries (docs/decisions/0034)
  Frame& frame = frames_[begun_++ % kFrames];
  frame.header = next_.header;
  frame.under_way = 0;
  frame.whole = frame.in_place = false;
  frame.kept.reset();
  has_header_ = true;
  in_pieces_ = next_.header.length > kEagerPayload;
  at_ = 0;
  return true;
}

// Where the payload at hand is read and written.
void LinkSender::Aim() {
  const Header& header = next_.header;
  at_ = generation_ = 0;
  target_ = 0;
  piece_ = {.data = next_.payload};
  const PlaceKeys found = current().kept ? PlaceKeys() : keys_.Find(next_.payload, header.length);
  if (found.keys != nullptr) {
    piece_keys_ = *found.keys;
    piece_.keys = &piece_keys_;
  } else if (found.foreign) {
    endpoint_.Break(Code::kInvalid, "a payload lies in memory of another device, which RDMA can't read here");
  }
  FindOffer();
  piece_.to = target_;
  piece_.bytes = std::min(header.length, MostPerPiece());
}

void LinkSender::FindOffer() {
  const Header& header = next_.header;
  const PlaceOffer* const found = peer_offers_.Find(OfferIdOf(header));
  if (found == nullptr) return;
  const PlaceOffer& offer = *found;
  const bool encoded = (header.flags & kEncoded) != 0;
  if (encoded != (offer.encoded != 0) || header.offset + header.length > offer.bytes) return;
  generation_ = offer.generation;
  target_ = offer.address + header.offset;
  std::copy_n(offer.keys, kMaxQueuePairs, peer_keys_.begin());
  piece_.peer_keys = peer_keys_.data();
  const bool last = header.type == FrameType::kData && header.offset + header.length == offer.bytes;
  if (last) peer_offers_.Forget(OfferIdOf(header));
}

// As many small frames as there are and fit, up to a large one's header.
Result<bool> LinkSender::SendHeaders() {
  const uint32_t first = begun_ - (has_header_ ? 1 : 0);
  uint32_t bytes = 0, packed = 0;
  generation_ = 0;
  while (packed < kPacked) {
    if (!has_header_) {
      blocked_ = begun_ - reported_ == kFrames || endpoint_.bytes_under_way() + bytes >= kUnderWay;
      if (blocked_ || !Begin() || has_notices()) break;  // an offer goes before the frame with which it was made
    }
    const uint32_t added = Pack(endpoint_.content() + bytes, kContentBytes - bytes);
    if (added == 0) break;
    bytes += added;
    ++packed;
    if (in_pieces_) break;
  }
  if (packed == 0) return has_header_;
  const bool pieces = in_pieces_ && !has_header_;
  const Envelope envelope{.kind = Kind::kFrame, .pieces = pieces, .generation = pieces ? generation_ : 0};
  Status sent = endpoint_.SendEager(envelope, bytes, Tag(first, packed));
  if (!sent.ok()) return sent;
  return true;
}

// The frame at hand; 0: there is no room for it.
uint32_t LinkSender::Pack(std::byte* to, uint32_t room) {
  const Header& header = next_.header;
  const uint32_t size = PackedSize(in_pieces_ ? 0 : header.length);
  if (size > room) return 0;
  EncodeHeader(header, std::span<std::byte, kHeaderBytes>(to, kHeaderBytes));
  if (!in_pieces_ && header.length > 0) std::memcpy(to + kHeaderBytes, next_.payload, header.length);
  has_header_ = false;
  ++current().under_way;
  current().whole = !in_pieces_;
  if (in_pieces_) Aim();
  return size;
}

uint32_t LinkSender::MostPerPiece() const {
  if (piece_.keys == nullptr || target_ == 0) return kSlotBytes;
  const uint32_t share = next_.header.length / endpoint_.queue_pairs() + 1;
  return std::clamp(share, kLeastPiece, kMostPiece);
}

Status LinkSender::SendPiece() {
  Frame& frame = current();
  frame.in_place = frame.in_place || piece_.keys != nullptr;
  ++frame.under_way;
  at_ += piece_.bytes;
  in_pieces_ = at_ < next_.header.length;
  frame.whole = !in_pieces_;
  Status sent = endpoint_.Send(piece_, Tag(begun_ - 1, 1));
  piece_.data += piece_.bytes;
  if (target_ != 0) piece_.to = target_ + at_;
  piece_.bytes = std::min(next_.header.length - at_, MostPerPiece());
  return sent;
}

void LinkSender::OnDelivered(uint32_t tag) {
  const uint32_t first = tag & 0xffff;
  for (uint32_t i = 0; i < tag >> 16; ++i) --frames_[(first + i) % kFrames].under_way;
}

void LinkSender::Report(const bool& stop) {
  while (!stop && reported_ != begun_) {
    Frame& frame = frames_[reported_ % kFrames];
    if (!frame.whole || frame.under_way > 0) return;
    ++reported_;
    const Header header = frame.header;
    traffic_.frames.Add(1);
    traffic_.payload.Add(header.length);
    traffic_.bytes.Add(kHeaderBytes + header.length);
    sent_goodbye_ = header.type == FrameType::kGoodbye;
    handler_.OnSent(link_, header);
  }
}

// Copies the unsent part of the current frame. False: it can't be copied.
bool LinkSender::CopyRest() {
  Frame& frame = current();
  const uint32_t left = next_.header.length - (in_pieces_ ? at_ : 0);
  if (left == 0 || frame.kept != nullptr) return true;
  if (keys_.Find(next_.payload, next_.header.length).foreign) return false;
  frame.kept = std::make_unique_for_overwrite<std::byte[]>(left);
  std::memcpy(frame.kept.get(), next_.payload + (next_.header.length - left), left);
  next_.payload = piece_.data = frame.kept.get();  // until the frame's end only the latter is looked at, or the former
  piece_.keys = nullptr;
  piece_.bytes = std::min(left, MostPerPiece());
  return true;
}

bool LinkSender::Keep() {
  if ((has_header_ || in_pieces_) && !CopyRest()) return false;
  const Deadline limit = Clock::now() + kKeepPatience;
  for (uint32_t i = reported_; i != begun_; ++i) {
    while (frames_[i % kFrames].in_place && frames_[i % kFrames].under_way > 0) {
      const bool busy = endpoint_.Poll() > 0;
      if (!endpoint_.failure().ok()) return true;  // nothing is read any more, or soon
      if (Clock::now() >= limit) return false;
      if (!busy) endpoint_.Await(limit);
    }
  }
  return true;
}

}  // namespace byteps_like::rdma
