#include "csrc/transport/rdma/link_receiver.h"

#include <cstring>
#include <utility>

namespace byteps_like::rdma {

Result<bool> LinkReceiver::Receive(size_t budget, const bool& stop, std::vector<Notice>* notices) {
  const uint64_t limit = traffic_.bytes.get() + budget;
  while (!stop) {
    if (traffic_.bytes.get() >= limit) return true;
    const Arrival* const front = endpoint_.Front();
    if (front == nullptr) return false;
    Status handled = front->envelope == nullptr ? OnPiece(*front) : OnMessage(*front, stop, notices);
    if (stop) break;
    if (!handled.ok()) return handled;
    endpoint_.Pop();
  }
  return true;
}

Status LinkReceiver::OnMessage(const Arrival& arrival, const bool& stop, std::vector<Notice>* notices) {
  switch (arrival.envelope->kind) {
    case Kind::kCredit:
      return {};
    case Kind::kFrame:
      return OnFrames(arrival, stop);
    case Kind::kFin:
      return Status(Code::kClosed, link_.peer() + " closed the link");
    case Kind::kOpen:
    case Kind::kOffer:
    case Kind::kWithdraw:
    case Kind::kWithdrawn:
      if (arrival.bytes != sizeof(PlaceOffer)) return Corrupt("an offer of the wrong size");
      notices->push_back({arrival.envelope->kind, {}});
      std::memcpy(&notices->back().place, arrival.content, sizeof(PlaceOffer));
      return {};
    default:
      return Corrupt("a message of an unknown kind");
  }
}

Status LinkReceiver::Corrupt(const std::string& what) const {
  return Status(Code::kCorrupt, link_.peer() + ": it sent " + what);
}

Status LinkReceiver::OnFrames(const Arrival& arrival, const bool& stop) {
  for (uint32_t at = 0; at < arrival.bytes && !stop; at += PackedSize(in_payload_ ? 0 : header_.length)) {
    if (in_payload_ || arrival.bytes - at < kHeaderBytes) return Corrupt("a header in an invalid position");
    Status handled = OnFrame(arrival.content + at, arrival.bytes - at, *arrival.envelope);
    if (!handled.ok()) return handled;
  }
  return {};
}

// `bytes`: of the message from this header on.
Status LinkReceiver::OnFrame(std::byte* start, uint32_t bytes, const Envelope& envelope) {
  auto header = DecodeHeader(std::span<const std::byte, kHeaderBytes>(start, kHeaderBytes));
  if (!header.ok()) return Status(header.status().code(), link_.peer() + ": " + header.status().message());
  header_ = *header;
  traffic_.bytes.Add(kHeaderBytes);
  landed_ = 0;
  place_ = written_ = nullptr;
  if (envelope.pieces != 0 && bytes == kHeaderBytes && header_.length > 0) {
    in_payload_ = true;
    return envelope.generation == 0 ? Status() : Locate(envelope.generation);
  }
  if (bytes < PackedSize(header_.length) || header_.length > kEagerPayload) {
    return Corrupt("a frame whose length differs from its header");
  }
  traffic_.bytes.Add(header_.length);
  if (header_.length > 0) return Whole(start + kHeaderBytes);
  Finish(nullptr);
  return {};
}

// Where the payload was written, by an offer of ours that still holds.
Status LinkReceiver::Locate(uint32_t generation) {
  const auto found = offered_.find(OfferIdOf(header_));
  if (found == offered_.end() || found->second.generation != generation ||
      header_.offset + header_.length > found->second.bytes) {
    return Corrupt("a payload for key " + std::to_string(header_.key) + " to a place that is not offered");
  }
  written_ = found->second.place + header_.offset;
  return {};
}

Status LinkReceiver::OnPiece(const Arrival& arrival) {
  if (!in_payload_ || arrival.bytes == 0 || arrival.bytes > header_.length - landed_)
    return Corrupt("a payload that belongs to no header");
  traffic_.bytes.Add(arrival.bytes);
  if (written_ == nullptr) {
    if (arrival.bytes > kSlotBytes) return Corrupt("a payload larger than a slot");
    Status landed = OnSlot(endpoint_.TakeSlot(), arrival.bytes);
    endpoint_.FreeSlot();
    return landed;
  }
  landed_ += arrival.bytes;
  if (landed_ < header_.length) return {};
  in_payload_ = false;
  return Whole(written_);
}

Status LinkReceiver::OnSlot(std::byte* slot, uint32_t bytes) {
  if (bytes == header_.length) {
    in_payload_ = false;
    return Whole(slot);
  }
  if (landed_ == 0) {
    if (Status found = FindPlace(); !found.ok()) return found;
    if (place_ == kAnywhere) place_ = Scratch();
  }
  std::memcpy(place_ + landed_, slot, bytes);
  landed_ += bytes;
  if (landed_ < header_.length) return {};
  in_payload_ = false;
  Finish(place_);
  return {};
}

Status LinkReceiver::FindPlace() {
  place_ = handler_.PlaceFor(link_, header_);
  if (place_ != nullptr) return {};
  return Status(Code::kCorrupt, link_.peer() + ": a frame of type " + std::to_string(static_cast<int>(header_.type)) +
                                    " for key " + std::to_string(header_.key) + " was not expected");
}

// All of the payload lies at `landed`.
Status LinkReceiver::Whole(std::byte* landed) {
  if (Status found = FindPlace(); !found.ok()) return found;
  if (landed == written_ && (place_ == kAnywhere || place_ == landed)) placed_.Add(header_.length);
  if (place_ == kAnywhere) place_ = landed;
  if (place_ != landed) std::memmove(place_, landed, header_.length);
  Finish(place_);
  return {};
}

void LinkReceiver::Finish(std::byte* payload) {
  saw_goodbye_ = header_.type == FrameType::kGoodbye;
  traffic_.frames.Add(1);
  traffic_.payload.Add(header_.length);
  if (header_.type == FrameType::kData && !offered_.empty()) Lapse();
  handler_.OnFrame(link_, header_, payload);
}

// An offer of DATA ends with the last byte of its message. The peer has forgotten it if that went by it; else it did
// not know it in time.
void LinkReceiver::Lapse() {
  const OfferId id = OfferIdOf(header_);
  const auto found = offered_.find(id);
  if (found == offered_.end() || found->second.withdrawn) return;
  if (header_.offset + header_.length < found->second.bytes) return;
  if (written_ == nullptr) lapsed_.push_back({Kind::kOffer, {.type = id.type, .key = id.key, .which = id.which}});
  offered_.erase(found);
}

std::byte* LinkReceiver::Scratch() {
  const size_t lines = (header_.length + sizeof(CacheLine) - 1) / sizeof(CacheLine);
  if (scratch_.size() < lines) scratch_.resize(lines);
  return scratch_.data()->bytes;
}

bool LinkReceiver::Redirect(std::byte* place) {
  if (!in_payload_ || place_ == nullptr) return false;
  if (place == kAnywhere) place = Scratch();
  if (place == place_) return true;
  std::memmove(place, place_, landed_);
  place_ = place;
  return true;
}

bool LinkReceiver::Offer(const Header& about, std::byte* place, uint64_t bytes, std::optional<Notice>* told) {
  const OfferId id = OfferIdOf(about);
  const bool encoded = (about.flags & kEncoded) != 0;
  // Shorter payloads come in eager messages, which have no place; payloads in slots are copied.
  const PlaceKeys known = place == nullptr || bytes <= kEagerPayload ? PlaceKeys() : keys_.Find(place, bytes);
  const DeviceKeys* const keys = known.foreign ? nullptr : known.keys;
  const auto found = offered_.find(id);
  if (found != offered_.end()) {
    const Offered& old = found->second;
    if (old.withdrawn) return false;
    // Other keys: the old memory is gone, and the offer means the memory that was mapped there next.
    const bool same = keys != nullptr && old.place == place && old.bytes == bytes && old.encoded == encoded;
    if (same && old.keys == *keys) return true;
    offered_.erase(found);
  } else if (keys == nullptr ||
             offered_.size() >= kMostOffers / 2) {  // the peer still knows a withdrawn offer for a while
    return false;
  }
  PlaceOffer& offer = told->emplace(Notice{Kind::kOffer, {}}).place;
  offer.type = id.type;
  offer.encoded = encoded;
  offer.key = id.key;
  offer.which = id.which;
  if (keys == nullptr) return false;
  if (++generation_ == 0) ++generation_;
  offer.generation = generation_;
  offer.address = reinterpret_cast<uint64_t>(place);
  offer.bytes = bytes;
  for (uint32_t i = 0; i < endpoint_.queue_pairs(); ++i) offer.keys[i] = (*keys)[endpoint_.device_of(i)].remote;
  offered_.emplace(id, Offered{place, bytes, generation_, encoded, *keys});
  return true;
}

bool LinkReceiver::Withdraw(const OfferId& what, std::optional<Notice>* told) {
  const auto found = offered_.find(what);
  if (found == offered_.end()) return false;
  Offered& offered = found->second;
  if (std::exchange(offered.withdrawn, true)) return true;
  PlaceOffer& offer = told->emplace(Notice{Kind::kWithdraw, {}}).place;
  offer.type = what.type;
  offer.key = what.key;
  offer.which = what.which;
  offer.generation = offered.generation;
  return true;
}

Status LinkReceiver::OnWithdrawn(const PlaceOffer& offer) {
  const OfferId id{offer.type, offer.key, offer.which};
  const auto found = offered_.find(id);
  if (found == offered_.end() || !found->second.withdrawn || found->second.generation != offer.generation) {
    return Corrupt("an answer to an offer that was not withdrawn");
  }
  offered_.erase(found);
  handler_.OnWithdrawn(link_, id);
  return {};
}

}  // namespace byteps_like::rdma
