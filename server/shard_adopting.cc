// What a shard does for the keys of servers that are gone (server/adopting/adoptions.h).
#include <chrono>
#include <cstdio>
#include <string>

#include "server/shard.h"

namespace byteps_like {

void Shard::FailAdoption(uint64_t key, const Status& why) {
  FailOnLoop(why.code(), KeyText(key) + ": " + why.message());
}

bool Shard::IsHere(uint32_t rank) const { return !peers_[rank]->left; }

// Whether the frame was for an adoption.
bool Shard::OnAdoptionFrame(Peer& peer, const Header& header, const std::byte* payload) {
  if (!world_.elastic) return false;
  switch (header.type) {
    case FrameType::kAdopt:
      if (!adoptions_.Knows(header.key) && !memory_.Charge(KeyBytes())) {
        FailAdoption(header.key, memory_.Exhausted());
        return true;
      }
      adoptions_.OnAdopt(peer.rank, header);
      ArmStallCheck();
      return true;
    case FrameType::kTake:
      adoptions_.OnTake(peer.rank, header);
      return true;
    case FrameType::kGive:
      adoptions_.OnGive(peer.rank, header, payload);
      return true;
    case FrameType::kContributors:
      adoptions_.OnContributors(peer.rank, header);
      return true;
    default:
      return false;
  }
}

// A new key goes on where its ranks are. False: they haven't all said where, so none of them may push yet.
bool Shard::BeginsAt(Key& key, const Header& header) {
  const auto first = adoptions_.FirstRound(key.key);
  if (!first) Blame(*peers_[header.rank], KeyText(key.key) + ": the rank pushes before it hears how the key goes on");
  key.next = first.value_or(0);
  return first.has_value();
}

void Shard::ExcuseThoseBeyond(Key& key, Round& round) {
  for (const uint32_t rank : adoptions_.Begun(key.key, round.number())) {
    round.Excuse(rank);
    round.Acknowledge(rank);
  }
}

void Shard::CheckAdoptions() {
  const auto wait = adoptions_.LongestWait();
  if (!wait) return;
  const double age = std::chrono::duration<double>(Clock::now() - wait->since).count();
  if (age < world_.stall_warning && age < world_.stall_timeout) return;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, " for %.1f s", age);
  const std::string text = KeyText(wait->key) + ": " + wait->text + seconds;
  if (age >= world_.stall_timeout) return FailOnLoop(Code::kStalled, text);
  bool news = false;
  for (const uint32_t rank : wait->waiting) news = WarnOfWait(*peers_[rank], text) || news;
  if (news) options_.on_event(world_.epoch, Code::kStalled, text, false);
}

}  // namespace byteps_like
