#include "server/rounds/round.h"

#include <algorithm>
#include <utility>

#include "server/codecs.h"

namespace byteps_like {

Terms TermsOf(const Header& push, const ServerCodec* codec) {
  return {.dtype = push.dtype,
          .op = push.op,
          .root = push.op == Op::kBroadcast ? push.root : 0,
          .total = codec == nullptr ? push.total : 0,
          .codec = codec};
}

std::string Describe(const Terms& terms) {
  std::string text = NameOf(terms.op);
  if (terms.codec != nullptr) return text + " encoded by " + terms.codec->text;
  if (terms.op == Op::kBroadcast) text += " from root " + std::to_string(terms.root);
  return text + " of " + std::to_string(terms.total) + " bytes of " + NameOf(terms.dtype);
}

void Round::Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) {
  active_ = true;
  number_ = first.round;
  terms_ = terms;
  opened_by_ = first.rank;
  priority_ = first.priority;
  movable_ = true;
  seats_ = &seats;
  relayed_ = policy.relayed;
  total_ = complete_ = summed_ = begun_ = contributions_ = at_once_ = references_ = absent_ = 0;
  segment_ = acknowledged_ = 0;
  ranks_.assign(seats.size(), Contribution{});
  least_ = policy.row.quorum->Least(seats.counting());
  source_ = policy.row.quorum->Source(terms);
  read_ = policy.row.read;
  update_ = policy.update;
  Touch();
}

void Round::Touch() {
  last_progress_ = Clock::now();
  warnings_ = 0;
}

bool Round::WarnOnce(uint32_t warnings) {
  if (warnings <= warnings_) return false;
  warnings_ = warnings;
  return true;
}

Header Round::Describe() const {
  Header header;
  header.round = number_;
  header.dtype = terms_.dtype;
  header.op = terms_.op;
  header.root = terms_.root;
  header.total = total_;
  header.priority = priority_;
  header.flags = static_cast<uint8_t>((movable_ ? kMovable : 0) | (terms_.codec != nullptr ? kEncoded : 0));
  return header;
}

std::string Round::Disagreement(const Header& push, const Terms& terms) const {
  if (terms == terms_) return "";
  std::vector<uint32_t> others;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if ((ranks_[rank].begun && !ranks_[rank].gone) || rank == opened_by_) others.push_back(rank);
  return seats_->Name(push.rank) + " sent " + byteps_like::Describe(terms) + ", but " + seats_->Names(others) +
         " sent " + byteps_like::Describe(terms_);
}

std::string Round::WaitingFor() const {
  std::vector<uint32_t> present;
  for (uint32_t seat = 0; seat < ranks_.size(); ++seat)
    if (Has(seat) && !ranks_[seat].gone) present.push_back(seat);
  const std::vector<uint32_t> missing = Missing();
  if (missing.empty()) return "waiting for the result";
  return "waiting for " + seats_->Names(missing) + (present.empty() ? "" : "; have " + seats_->Names(present));
}

// By the seats from which contributions should come: an aggregator's, where there is one that may bring this kind.
std::vector<uint32_t> Round::Missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < seats_->ranks(); ++rank) {
    if (seats_->weight(rank) == 0) continue;
    uint32_t seat = SeatOf(rank);
    if (seat == kNobody) seat = terms_.codec == nullptr ? seats_->Of(rank).back() : rank;
    if (!Has(seat) && !ranks_[seat].gone && std::ranges::find(missing, seat) == missing.end()) missing.push_back(seat);
  }
  return missing;
}

uint32_t Round::SeatOf(uint32_t rank) const {
  for (const uint32_t seat : seats_->Of(rank))
    if (ranks_[seat].begun) return seat;
  return kNobody;
}

uint32_t Round::RivalOf(uint32_t seat) const {
  for (const uint32_t other : seats_->Beside(seat))
    if (ranks_[other].begun) return other;
  return kNobody;
}

bool Round::BringsAny() const { return source_ == kNobody || seats_->weight(source_) > 0; }

void Round::MarkBegun(Contribution& contribution, uint32_t total) {
  if (contribution.begun) return;
  Touch();
  contribution.begun = true;
  contribution.total = total;
  ++contributions_;
  begun_ += seats_->weight(static_cast<uint32_t>(&contribution - ranks_.data()));
}

bool Round::Acknowledge(uint32_t rank) {
  if (!std::exchange(ranks_[rank].acknowledged, true)) acknowledged_ += seats_->weight(rank);
  return acknowledged_ == seats_->counting();
}

void Round::Refer(uint32_t rank, std::shared_ptr<std::byte> memory) {
  Contribution& contribution = ranks_[rank];
  ++references_;
  ++at_once_;
  MarkBegun(contribution, total_);
  contribution.referred = true;
  contribution.reference = std::move(memory);
  contribution.counted = total_;
}

void Round::LetGoOfReferences() {
  if (references_ == 0) return;
  for (Contribution& contribution : ranks_) contribution.reference.reset();
}

void Round::Subscribe(uint32_t rank) {
  MarkBegun(ranks_[rank], total_);
  ranks_[rank].counted = total_;
}

void Round::Excuse(uint32_t rank) {
  Subscribe(rank);
  ranks_[rank].absent = true;
  ++at_once_;
  absent_ += seats_->weight(rank);
}

bool Round::LeaveOut(uint32_t rank) {
  Contribution& contribution = ranks_[rank];
  if (contribution.referred && !finished()) contribution.counted = summed_;
  contribution.reference.reset();
  if (!contribution.begun) {
    Excuse(rank);
  } else if (!Has(rank)) {
    CutShort(rank);
  }
  contribution.gone = true;
  return Acknowledge(rank);
}

uint32_t Round::Brought(uint32_t rank) const {
  const Contribution& contribution = ranks_[rank];
  const bool counts = contribution.begun && !contribution.absent && Brings(rank) && (Has(rank) || CountsPart(rank));
  const bool lies_there = contribution.referred && !contribution.gone && !finished();
  return !counts ? 0 : lies_there ? summed_ : contribution.counted;
}

void Round::CutShort(uint32_t rank) {
  Contribution& contribution = ranks_[rank];
  contribution.absent = true;
  contribution.counted = contribution.total;
  absent_ += seats_->weight(rank);
}

void Round::Note(const Header& push) {
  movable_ = movable_ && (push.flags & kMovable) != 0;
  segment_ = std::max(segment_, push.length);
  ranks_[push.rank].codec = push.aux;
}

void Round::Abandon(const Link&) {}
Link* Round::InTheWay(const Link&, const Header&) const { return nullptr; }

}  // namespace byteps_like
