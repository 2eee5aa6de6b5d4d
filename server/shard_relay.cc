// What only a shard of an aggregator hears, and what it passes on (server/relay/relay.h).
#include <algorithm>

#include "server/shard.h"

namespace byteps_like {

// Rounds of arrays are all that racks have: values that servers keep, and payloads of codecs, go to their owners.
bool Shard::IsOutOfPlace(const Peer& peer, FrameType type) const {
  switch (type) {
    case FrameType::kPush:
    case FrameType::kResume:
    case FrameType::kForget:
      return seats_.weight(peer.rank) == 0;
    case FrameType::kError:
    case FrameType::kGoodbye:
      return false;
    case FrameType::kRegion:
      return seats_.is_aggregator(peer.rank);
    case FrameType::kOwner:
      return relay_ == nullptr;
    default:
      return relay_ != nullptr || seats_.is_aggregator(peer.rank);
  }
}

bool Shard::HasRackLeft() const {
  for (uint32_t rank = 0; rank < seats_.ranks(); ++rank)
    if (seats_.weight(rank) > 0 && !peers_[rank]->left) return false;
  return true;
}

void Shard::OnOwner(Peer& peer, const Header& header) {
  const Status known = relay_->SetOwner(header.key, {header.root, header.aux});
  if (known.code() == Code::kMismatch) return FailOnLoop(known.code(), KeyText(header.key) + ": " + known.message());
  if (!known.ok()) Blame(peer, KeyText(header.key) + ": " + known.message());
}

void Shard::OnAnswer(uint64_t number, uint32_t which, uint32_t landed, bool movable) {
  const auto found = keys_.find(number);
  if (found == keys_.end()) return;
  Key& key = *found->second;
  Round& round = key.of(which);
  if (!round.active() || round.number() != which || landed <= round.complete()) return;
  stats_.relayed_down += landed - round.complete();
  round.Answer(landed, movable);
  HandOut(key, round);
}

// Ranks that wait hear what the owner of their key waits for, or that it is silent.
void Shard::OnRelayWarning(const std::string& text) {
  std::vector<bool> waiting(peers_.size());
  for (const auto& [id, key] : keys_)
    for (const auto& round : key->rounds)
      for (uint32_t rank = 0; round->active() && !round->finished() && rank < peers_.size(); ++rank)
        if (round->ranks()[rank].begun) waiting[rank] = true;
  for (const auto& peer : peers_)
    if (waiting[peer->rank] && peer->link && peer->control.empty())
      SendText(*peer, FrameType::kWarning, Code::kStalled, text);
}

}  // namespace byteps_like
