// Partitions whose server has died go on at another shard. All ranks tell it how far they have come: those that lack
// the newest result take it from one that has it; then contributions to the next round are brought anew.
#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/engine/channel.h"
#include "csrc/engine/coding/coding.h"

namespace byteps_like {

// At the old shard ----------------------------------------------------------------------------------------------------

void Channel::Leave() {
  ending_ = left_ = true;
  while (!queue_.empty()) Dequeue();
  gifts_.clear();
  control_.clear();
  if (link_) {
    link_->Keep();
    link_->Close(Status(Code::kPeerLost, name() + " has died"));
    closing_.push_back(std::move(link_));
  }
  Announce();
}

bool Channel::IsInFlight(const Part& part) const {
  return part.slot < in_flight_.size() && in_flight_[part.slot] == &part;
}

bool Channel::Release(Part& part) {
  const bool in_flight = IsInFlight(part);
  if (link_ && gifts_under_way_ > 0) link_->Keep();
  if (const auto found = parts_.find(part.key); found != parts_.end() && found->second == &part) parts_.erase(found);
  absences_.Forget(part.key);
  if (!in_flight) return false;
  TakeOff(part);
  LeaveBounce(part, Status(Code::kPeerLost, "the server has died"));
  return true;
}

// At the new one ------------------------------------------------------------------------------------------------------

void Channel::Adopt(Part& part, bool in_flight) {
  part.adoption = AdoptionStage::kAsked;
  parts_.emplace(part.key, &part);
  if (in_flight) Enter(part);
  AskToAdopt(part, in_flight);
}

// What it says of a part that may not be in flight: nothing of a request.
Header Channel::About(const Part& part, FrameType type) const {
  Header header;
  header.type = type;
  header.view = context_.options.credentials.view;
  header.member = context_.options.member;
  header.key = part.key;
  header.round = part.round;
  return header;
}

void Channel::KeepFor(Part& part) { parts_[part.key] = &part; }

void Channel::LetGoOf(Part& part) {
  if (link_ && gifts_under_way_ > 0) link_->Keep();
  part.held.reset();
}

void Channel::AskToAdopt(const Part& part, bool waits) {
  Header header = About(part, FrameType::kAdopt);
  const bool holds = part.held && part.held->Has(part.round - 1);
  header.aux = (holds ? uint32_t{kHoldsResult} : 0) | (waits ? uint32_t{kWaits} : 0) |
               (part.absent ? uint32_t{kBroughtNothing} : 0);
  control_.push_back(header);
  if (link_) link_->Kick();
}

void Channel::OnAdopted(const Header& header) {
  const auto found = parts_.find(header.key);
  if (header.view != context_.options.credentials.view || found == parts_.end()) return;
  Part& part = *found->second;
  if (part.adoption != AdoptionStage::kAsked) return;  // said again over another link
  if (header.round != part.round)
    return owner_.FailOnLoop(Status(Code::kCorrupt, name() + " goes on with round " + std::to_string(header.round) +
                                                        " of key " + std::to_string(part.key) + ", not " +
                                                        std::to_string(part.round)));
  part.adoption = header.aux == kIsTaken ? AdoptionStage::kTaking : AdoptionStage::kOver;
  if (!IsInFlight(part)) return;
  if (part.adoption == AdoptionStage::kTaking) return AskForResult(part);
  Queue(part);
}

void Channel::AskForResult(Part& part) {
  part.begun = true;
  Header header = About(part, FrameType::kTake);
  header.offset = part.absent ? kMaxPartition : part.landed;  // that of an absent rank is word of its end
  control_.push_back(header);
  if (link_) link_->Kick();
}

void Channel::OnGive(Part& part, const Header& header, const std::byte* payload) {
  if (part.absent) {
    owner_.Arrived(part, header);
    return Finish(part, Status());
  }
  if (header.offset != part.landed) return;
  DropHeld(part);
  part.expected = header.total;
  std::memcpy(LandingOf(part).data + part.landed, payload, header.length);
  part.landed += header.length;
  owner_.Arrived(part, header);
  if (part.landed != part.expected) return;
  Hold(part, header);
  Finish(part, Status());
}

// Its result is whole, where it landed.
void Channel::Hold(Part& part, const Header& result) {
  Header about = result;
  about.type = FrameType::kResult;
  about.flags &= kMovable | kEncoded;
  about.total = part.expected;
  about.offset = about.length = 0;
  if ((result.flags & kByReference) != 0) {
    DropHeld(part);
    std::memcpy(part.held->Room(part.total), part.address, part.total);
  } else {
    std::memcpy(PlaceOf(part).data, part.held->data(), part.expected);
  }
  part.held->Hold(about);
}

// For ranks that lack a result ----------------------------------------------------------------------------------------

void Channel::OnTake(const Header& header) {
  if (header.view != context_.options.credentials.view || header.offset > kMaxPartition) return;
  const Gift gift{header.key, header.round, header.root, static_cast<uint32_t>(header.offset)};
  if (GivenBy(gift) == nullptr)
    return owner_.FailOnLoop(Status(Code::kPeerLost, "the result of round " + std::to_string(header.round) +
                                                         " of key " + std::to_string(header.key) + ", which rank " +
                                                         std::to_string(header.root) +
                                                         " lacks, was lost with its server"));
  std::erase_if(gifts_, [&](const Gift& one) { return one.key == gift.key && one.to == gift.to; });
  gifts_.push_back(gift);
  if (link_) link_->Kick();
}

Part* Channel::GivenBy(const Gift& gift) {
  const auto found = parts_.find(gift.key);
  if (found == parts_.end() || !found->second->held || !found->second->held->Has(gift.round)) return nullptr;
  return found->second;
}

// Its memory will have another result.
void Channel::DropHeld(Part& part) {
  if (link_ && gifts_under_way_ > 0) link_->Keep();
  part.held->Drop();
}

// Who is not in it goes first.
bool Channel::NextGift(Outgoing& next) {
  while (!gifts_.empty() && GivenBy(gifts_.front()) == nullptr) gifts_.pop_front();
  if (gifts_.empty()) return false;
  Gift& gift = gifts_.front();
  Part& part = *GivenBy(gift);
  Header& header = next.header = part.held->result();
  header.view = context_.options.credentials.view;
  header.member = context_.options.member;
  header.key = gift.key;
  if (gift.told < part.absences.size()) {
    const Absence& absence = part.absences[gift.told++];
    header.type = FrameType::kContributors;
    header.flags = 0;
    header.aux = gift.to;
    header.root = absence.rank;
    header.offset = absence.bytes;
    header.total = absence.total;
    return true;
  }
  header.type = FrameType::kGive;
  header.aux = 0;
  header.root = gift.to;
  header.offset = gift.offset = std::min(gift.offset, header.total);
  header.length =
      static_cast<uint32_t>(std::min<size_t>(link_->Filling(context_.segment_bytes), header.total - gift.offset));
  ++gifts_under_way_;
  next.payload = part.held->data() + gift.offset;
  gift.offset += header.length;
  if (gift.offset == header.total) gifts_.pop_front();
  return true;
}

}  // namespace byteps_like
