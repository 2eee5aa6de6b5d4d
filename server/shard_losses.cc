// Workers that are gone, since they died or said goodbye: the others go on without them, or hear whom they wait for.
#include <algorithm>

#include "server/shard.h"

namespace byteps_like {

void Shard::LeaveOut(uint32_t epoch, uint32_t rank) {
  loop_.Post([this, epoch, rank] {
    if (epoch == world_.epoch && rank < seats_.ranks() && !peers_[rank]->left)
      Depart(*peers_[rank], Status(Code::kPeerLost, "the worker died"));
  });
}

void Shard::Depart(Peer& peer, const Status& why) {
  peer.left = true;
  ++left_;
  if (!seats_.is_aggregator(peer.rank)) store_.OnLeft(peer.rank);
  Drop(peer, why);
  if (world_.elastic) {
    GoOnWithout(peer);
  } else {
    FailWhatWaitsFor(peer);
  }
  if (relay_ && HasRackLeft()) relay_->Goodbye();
}

bool Shard::GoesOnWithout(const Peer& peer) const { return world_.elastic && peer.left; }

// What was counted of its contributions stays in the sums, the rest is not waited for. The others hear which is which
// before they get any result without it.
void Shard::GoOnWithout(Peer& gone) {
  for (const auto& peer : peers_)
    if (peer->link) TellWhoIsGone(*peer, gone);
  std::vector<Key*> over;
  for (auto& [id, key] : keys_) {
    for (auto& round : key->rounds)
      if (round->active() && failure_.ok()) LeaveOutOf(*key, *round, gone);
    if (IsOver(*key)) over.push_back(key.get());
  }
  for (Key* const key : over) Free(*key);
  adoptions_.OnGone(gone.rank);
}

void Shard::LeaveOutOf(Key& key, Round& round, Peer& gone) {
  if (!round.CanDoWithout(gone.rank))
    return FailRound(key, round,
                     Status(Code::kPeerLost, "rank " + std::to_string(gone.rank) +
                                                 " is no longer in the job, and its bytes were to be broadcast"));
  const bool over = round.LeaveOut(gone.rank);
  if (!round.finished() && !IsAbandoned(round)) Progress(key, round, gone.rank);
  if (over && round.finished()) round.Release();
}

// Ranks that were gone before it began.
void Shard::LeaveOutGone(Key& key, Round& round) {
  for (const auto& peer : peers_)
    if (GoesOnWithout(*peer) && failure_.ok()) LeaveOutOf(key, round, *peer);
}

// Only ranks that are gone have begun it, and the others may never come to it.
bool Shard::IsAbandoned(const Round& round) const {
  const auto begun = [&](const auto& one) { return round.ranks()[one->rank].begun; };
  const auto gone = [&](const auto& one) { return GoesOnWithout(*one); };
  return std::ranges::any_of(peers_, [&](const auto& one) { return begun(one) && gone(one); }) &&
         std::ranges::none_of(peers_, [&](const auto& one) { return begun(one) && !gone(one); });
}

void Shard::TellWhoIsGone(Peer& peer) {
  for (const auto& gone : peers_)
    if (GoesOnWithout(*gone)) TellWhoIsGone(peer, *gone);
}

// It has its result, or will have it before anything that is said now.
bool Shard::HasHeardAll(const Round& round, const Peer& peer) const {
  const Contribution& contribution = round.ranks()[peer.rank];
  const bool on_its_way = round.finished() && contribution.sent == round.total() && !IsAway(peer, contribution);
  return contribution.acknowledged || on_its_way;
}

// Of each round whose result this peer may not have yet: how much of the contribution is in it. Then that no more
// comes.
void Shard::TellWhoIsGone(Peer& peer, const Peer& gone) {
  Header header;
  header.type = FrameType::kContributors;
  header.view = world_.epoch;
  header.member = peer.number;
  header.root = gone.rank;
  for (const auto& [id, key] : keys_)
    for (const auto& round : key->rounds) {
      if (!round->active() || round->Brought(gone.rank) == 0 || HasHeardAll(*round, peer)) continue;
      header.key = id;
      header.round = round->number();
      header.offset = round->Brought(gone.rank);
      header.total = round->ranks()[gone.rank].total;
      peer.control.emplace_back(header, std::string());
    }
  header.key = header.offset = 0;
  header.round = header.total = 0;
  peer.control.emplace_back(header, std::string());
  peer.link->Kick();
}

// No rank should wait for a deadline because of a rank that has said goodbye, or died.
void Shard::FailWhatWaitsFor(const Peer& gone) {
  if (stats_.open_rounds == 0) return;
  for (auto& [id, key] : keys_)
    for (auto& round : key->rounds)
      if (round->active() && !round->finished() && !round->Has(gone.rank) && FailIfGone(*key, *round)) return;
}

// Whether enough ranks have contributed, or still may.
bool Shard::IsInReach(const Round& round) const {
  uint32_t able = 0;
  for (uint32_t rank = 0; rank < seats_.ranks(); ++rank) able += MayBring(round, rank);
  return able >= round.least();
}

// By the seat that it has in this round, or, if it has none yet, by any that it may have.
bool Shard::MayBring(const Round& round, uint32_t rank) const {
  if (seats_.weight(rank) == 0) return false;
  const uint32_t seat = round.SeatOf(rank);
  if (seat != kNobody) return !peers_[seat]->left || round.Has(seat);
  if (round.terms().codec != nullptr) return !peers_[rank]->left;
  return std::ranges::any_of(seats_.Of(rank), [&](uint32_t other) { return !peers_[other]->left; });
}

bool Shard::FailIfGone(const Key& key, const Round& round) {
  if (IsInReach(round)) return false;
  for (uint32_t rank = 0; rank < seats_.ranks(); ++rank)
    if (seats_.weight(rank) > 0 && !MayBring(round, rank)) {
      FailOnLoop(Code::kPeerLost, KeyText(key.key) + ", round " + std::to_string(round.number()) + ": " +
                                      round.WaitingFor() + "; rank " + std::to_string(rank) +
                                      " is no longer in the job and will not contribute");
      return true;
    }
  return false;
}

}  // namespace byteps_like
