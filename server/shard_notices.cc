// Handles what workers send besides contributions: shared memory, codecs, resumed links and retired keys.
#include <algorithm>
#include <utility>

#include "csrc/base/log.h"
#include "server/shard.h"

namespace byteps_like {
namespace {

constexpr size_t kMaxRegions = 1u << 16;  // of a link

}  // namespace

// A region belongs to its link: over a new link it is announced again. Rounds that refer to it keep it until they are
// finished.
void Shard::OnRegion(Peer& peer, const Header& header) {
  if (header.offset == 0) {
    peer.regions.erase(header.aux);
    return;
  }
  auto buffer = peer.link->TakeBuffer();
  const Code code = buffer.status().code();
  if (code == Code::kCorrupt || code == Code::kInvalid || (buffer.ok() && (*buffer)->size() < header.offset))
    return Blame(peer, "memory was announced but not shared: " + buffer.status().message());
  if (peer.regions.size() >= kMaxRegions) return Blame(peer, "it shares too many pieces of memory");
  if (buffer.ok()) {
    (*buffer)->CloseFile();
    peer.regions[header.aux] = std::move(*buffer);
    return;
  }
  Log(LogLevel::kWarning, "memory of rank " + std::to_string(peer.rank) +
                              " can't be mapped; its data is sent instead: " + buffer.status().message());
  peer.regions[header.aux] = nullptr;
  Header answer = header;
  answer.offset = 0;
  answer.total = 1;
  peer.control.emplace_back(answer, std::string());
  peer.link->Kick();
}

namespace {

constexpr size_t kMostGivenUp = 1u << 16;  // a worker that is later than this many is not late, but wrong

}  // namespace

// The rank will not push the key again: it has the result of its last round, or has given that round up.
void Shard::OnForget(Peer& peer, const Header& header) {
  const auto found = keys_.find(header.key);
  if (found == keys_.end()) return;
  Key& key = *found->second;
  key.forgotten.resize(peers_.size());
  key.forgotten[peer.rank] = true;
  for (const uint32_t parity : {0, 1}) LendTo(peer.rank, key, parity, {});
  if (IsOver(key)) Free(key);
}

// Its last round may be one that some ranks have given up.
void Shard::Free(Key& key) {
  for (const auto& round : key.rounds) {
    if (!round->active()) continue;
    if (!round->finished()) --stats_.open_rounds;
    if (round->complete() > 0) {
      for (const auto& one : peers_)
        if (round->of(one->rank).begun && !round->of(one->rank).gone && !MayHaveAll(*round, one->rank))
          return Blame(*one, KeyText(key.key) + ": the rank forgets the key before it has its result");
      continue;
    }
    if (given_up_.size() == kMostGivenUp) given_up_.clear();
    given_up_.insert(key.key);
  }
  if (relay_) relay_->Forget(key.key);
  if (adoptions_.Knows(key.key)) memory_.Refund(KeyBytes());
  adoptions_.Forget(key.key);
  --stats_.keys;
  memory_.Refund(KeyBytes());
  keys_.erase(key.key);
  memory_.Trim();  // its replacements have other sizes
}

// Whether all ranks have forgotten it or are gone, or all that have come to its last round, which the others won't come
// to: ranks that disagree about a name use different keys. Not while a peer may write to its memory or waits for a
// result.
bool Shard::IsOver(const Key& key) const {
  for (const auto& round : key.rounds)
    for (const auto& one : peers_)
      if (one->landing == round.get()) return false;
  if (!IsKept(key)) return true;
  bool given_up = false;
  for (const auto& round : key.rounds) {
    if (!round->active()) continue;
    const bool open = round->complete() == 0;
    given_up |= open && !IsAbandoned(*round);
    for (const auto& one : peers_) {
      if (GoesOnWithout(*one)) continue;
      const Contribution& contribution = round->of(one->rank);
      const bool elsewhere = !contribution.begun && round->RivalOf(one->rank) != kNobody;
      const bool waits = open ? contribution.begun : !contribution.acknowledged && !elsewhere;
      if (Keeps(key, one->rank) && (waits || round->lent_to() == one->rank)) return false;
    }
  }
  return given_up && key.lent.empty();
}

bool Shard::IsKept(const Key& key) const {
  return std::ranges::any_of(peers_, [&](const auto& one) { return !GoesOnWithout(*one) && Keeps(key, one->rank); });
}

// Whether the seat's ranks count here, and neither it nor another that speaks for them has forgotten the key.
bool Shard::Keeps(const Key& key, uint32_t seat) const {
  const auto forgotten = [&](uint32_t other) { return key.IsForgottenBy(other); };
  return seats_.weight(seat) > 0 && !forgotten(seat) && std::ranges::none_of(seats_.Beside(seat), forgotten);
}

// A new link of this rank: tells it how much of its contribution is in the sum, and continues the result after the part
// that it has.
void Shard::OnResume(Peer& peer, const Header& header) {
  Header answer = header;
  answer.type = FrameType::kResumed;
  answer.flags = 0;
  answer.offset = 0;
  const auto found = keys_.find(header.key);
  Round* const round = found == keys_.end() ? nullptr : &found->second->of(header.round);
  // A rank that disagrees has nothing counted: it is told so, and told why when it pushes.
  if (round != nullptr && round->active() && round->number() == header.round && round->of(peer.rank).begun) {
    Contribution& contribution = round->of(peer.rank);
    if (header.offset > round->Readable(peer.rank))
      return Blame(peer, KeyText(header.key) + ": the rank resumes beyond the end of the result");
    if (header.total != contribution.total)
      return Blame(peer, KeyText(header.key) + ": the rank resumes a round that it has not begun");
    answer.offset = contribution.counted;
    Return(peer, contribution);
    contribution.sent = static_cast<uint32_t>(header.offset);
    Offer(*found->second, *round, peer.rank);
  }
  peer.control.emplace_back(answer, std::string());
  peer.link->Kick();
}

// Refused at once: a worker that pushes with it would wait for a result that never comes.
void Shard::OnCodec(Peer& peer, const Header& header, std::string_view text) {
  if (header.aux >= kMaxCodecs)
    return Blame(peer, "it announces a codec with the invalid number " + std::to_string(header.aux));
  auto codec = codecs_.Find(text);
  if (!codec.ok())
    return FailOnLoop(codec.status().code(),
                      "rank " + std::to_string(peer.rank) + " announced a codec: " + codec.status().message());
  if (peer.codecs.size() <= header.aux) peer.codecs.resize(header.aux + 1);
  peer.codecs[header.aux] = *codec;
}

}  // namespace byteps_like
