#include "server/rounds/round.h"

#include <algorithm>
#include <utility>

#include "server/codecs.h"

namespace byteps_like {

std::string JoinRanks(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

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

void Round::Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, uint32_t world_size) {
  active_ = true;
  number_ = first.round;
  terms_ = terms;
  opened_by_ = first.rank;
  priority_ = first.priority;
  movable_ = true;
  total_ = complete_ = begun_ = references_ = absent_ = segment_ = 0;
  ranks_.assign(world_size, Contribution{});
  least_ = policy.row.quorum->Least(world_size);
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
    if (ranks_[rank].begun || rank == opened_by_) others.push_back(rank);
  return "rank " + std::to_string(push.rank) + " sent " + byteps_like::Describe(terms) + ", but " + JoinRanks(others) +
         " sent " + byteps_like::Describe(terms_);
}

std::string Round::WaitingFor() const {
  std::vector<uint32_t> missing, present;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) (Has(rank) ? present : missing).push_back(rank);
  return "waiting for " + JoinRanks(missing) + (present.empty() ? "" : "; have " + JoinRanks(present));
}

void Round::MarkBegun(Contribution& contribution, uint32_t total) {
  if (contribution.begun) return;
  Touch();
  contribution.begun = true;
  contribution.total = total;
  ++begun_;
}

void Round::Refer(uint32_t rank, std::shared_ptr<std::byte> memory) {
  Contribution& contribution = ranks_[rank];
  ++references_;
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
  ++absent_;
}

void Round::Note(const Header& push) {
  movable_ = movable_ && (push.flags & kMovable) != 0;
  segment_ = std::max(segment_, push.length);
  ranks_[push.rank].codec = push.aux;
}

void Round::Abandon(const Link&) {}
Link* Round::InTheWay(const Link&, const Header&) const { return nullptr; }

}  // namespace byteps_like
