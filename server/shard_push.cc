// Contributions on their way in.
#include <algorithm>
#include <utility>

#include "server/shard.h"

namespace byteps_like {
namespace {

constexpr size_t kKeyBytes = 1024;  // what a key takes beside its sums, about, in a small world

std::string KeyText(uint64_t key) { return "key " + std::to_string(key); }

}  // namespace

Shard::Key* Shard::FindOrMake(const Header& header) {
  const auto found = keys_.find(header.key);
  if (found != keys_.end()) return found->second.get();
  if (!Fits(header.key, kKeyBytes)) return nullptr;
  ++stats_.keys;
  auto key = std::make_unique<Key>();
  key->key = header.key;
  return keys_.emplace(header.key, std::move(key)).first->second.get();
}

// What the frame's own bounds leave open.
bool Shard::MakesSense(const Peer& peer, const Header& header) {
  const bool whole = header.total != 0 && header.total % SizeOf(header.dtype) == 0;
  const bool rooted = header.op != Op::kBroadcast || header.root < world_.size;
  const bool defined = Supports(header.op, header.dtype);
  if (whole && rooted && defined) return true;
  const char* const why = !defined ? ": there is no such operation"
                          : whole  ? ": there is no such rank"
                                   : ": no whole elements";
  Blame(peer, KeyText(header.key) + ": " + DescribeHeader(header) + why);
  return false;
}

// The round a push belongs to; nullptr if it is wrong (the job has failed then).
Round* Shard::RoundFor(Peer& peer, const Header& header, Key** out) {
  Key* const found = MakesSense(peer, header) ? FindOrMake(header) : nullptr;
  if (found == nullptr) return nullptr;
  Key& key = *found;
  *out = found;
  Round& round = key.rounds[header.round & 1];
  if (round.active() && round.number() == header.round)
    return Join(key, round, header) && Reserve(key, round, header) ? &round : nullptr;
  if (!Acknowledge(key, header)) return nullptr;
  if (header.round != key.next || round.active()) {
    FailOnLoop(Code::kMismatch, KeyText(key.key) + ": rank " + std::to_string(peer.rank) + " is at round " +
                                    std::to_string(header.round) + ", the others at " + std::to_string(key.next) +
                                    ": the ranks have not used this name equally often");
    return nullptr;
  }
  round.Begin(header, world_.size);
  round.began = Tracing() ? TraceClock() : 0;
  ++key.next;
  ++stats_.rounds;
  ++stats_.open_rounds;
  ArmStallCheck();
  return Reserve(key, round, header) ? &round : nullptr;
}

bool Shard::Join(Key& key, Round& round, const Header& header) {
  const std::string difference = round.Disagreement(header);
  if (difference.empty()) return Acknowledge(key, header);
  FailOnLoop(Code::kMismatch,
             KeyText(key.key) + ", round " + std::to_string(header.round) + ": the ranks disagree: " + difference);
  return false;
}

// A push of round r + 1 says that the rank has its result of r.
bool Shard::Acknowledge(Key& key, const Header& header) {
  Round& before = key.rounds[(header.round - 1) & 1];
  if (!before.active() || before.number() != header.round - 1) return true;
  Contribution& contribution = before.of(header.rank);
  if (contribution.sent != before.total()) {
    Blame(*peers_[header.rank], KeyText(key.key) + ": it goes on without the result of the round before");
    return false;
  }
  contribution.acknowledged = true;
  const auto ranks = before.ranks();
  if (std::all_of(ranks.begin(), ranks.end(), [](const Contribution& one) { return one.acknowledged; }))
    before.Release();
  return true;
}

void Shard::OnPush(Peer& peer, const Header& header, const std::byte* payload) {
  Key* key = nullptr;
  Round* const round = RoundFor(peer, header, &key);
  if (round == nullptr) return;
  round->Note(header);
  if (header.flags & kByReference) return OnReference(peer, *key, *round, header);
  const Contribution& contribution = round->of(peer.rank);
  const size_t size = SizeOf(header.dtype);
  if (header.offset > contribution.counted || header.offset % size != 0 || header.length % size != 0)
    return Blame(peer, KeyText(header.key) + ": a segment is out of order or splits an element");
  if (header.op == Op::kBroadcast && header.root != peer.rank) {
    round->Subscribe(peer.rank);
    if (Tracing()) TraceStage(TraceKind::kArrived, key->key, *round, peer.rank, 0);
    return Progress(*key, *round);
  }
  if (header.offset + header.length <= contribution.counted && header.length > 0) stats_.repeated += header.length;
  if (Link* const other = round->InTheWay(*peer.link, header)) {
    other->Redirect(PeerOf(*other)->scratch.data());
    round->Abandon(*other);
  }
  round->Landed(*peer.link, header, payload);
  if (Tracing() && header.offset + header.length == header.total)
    TraceStage(TraceKind::kArrived, key->key, *round, peer.rank, 0);
  Progress(*key, *round);
}

void Shard::OnReference(Peer& peer, Key& key, Round& round, const Header& header) {
  const auto found = peer.regions.find(header.aux);
  if (found == peer.regions.end() || header.offset > found->second->size() ||
      header.total > found->second->size() - header.offset)
    return Blame(peer, KeyText(header.key) + ": a push refers to memory that was not shared");
  stats_.referenced += header.total;
  Contribution& contribution = round.of(peer.rank);
  if (!contribution.begun) {
    round.Refer(peer.rank, found->second->data() + header.offset);
    if (Tracing()) TraceStage(TraceKind::kArrived, key.key, round, peer.rank, 0);
  } else {
    contribution.sent = 0;  // pushed again over a new link: the announcement of the result may have been lost
    Offer(key, round, peer.rank);
  }
  Progress(key, round);
}

void Shard::OnRegion(Peer& peer, const Header& header) {
  auto buffer = peer.link->TakeBuffer();
  if (!buffer.ok() || (*buffer)->size() < header.offset)
    return Blame(peer, "memory was announced but not shared: " + buffer.status().message());
  // Announced again over a new link it is the same memory; rounds refer to it where it was mapped first.
  peer.regions.try_emplace(header.aux, *buffer);
}

// The key has moved: no rank will push it again, and each that says so has the result of its last round.
void Shard::OnForget(Peer& peer, const Header& header) {
  const auto found = keys_.find(header.key);
  if (found == keys_.end()) return;
  Key& key = *found->second;
  key.forgotten.resize(peers_.size());
  key.forgotten[peer.rank] = true;
  if (!std::all_of(key.forgotten.begin(), key.forgotten.end(), [](bool one) { return one; })) return;
  for (const Round& round : key.rounds) {
    if (!round.delivered()) return Blame(peer, KeyText(key.key) + ": all forget it before all have its result");
    stats_.memory -= round.memory();
  }
  --stats_.keys;
  keys_.erase(found);
}

// A new link of this rank: says what of its contribution is in the sum, and goes on with the result from what it has.
void Shard::OnResume(Peer& peer, const Header& header) {
  Header answer = header;
  answer.type = FrameType::kResumed;
  answer.offset = 0;
  const auto found = keys_.find(header.key);
  if (found != keys_.end()) {
    Key& key = *found->second;
    Round& round = key.rounds[header.round & 1];
    if (round.active() && round.number() == header.round && round.Disagreement(header).empty()) {
      if (header.offset > round.complete())
        return Blame(peer, KeyText(header.key) + ": it resumes behind the end of the result");
      Contribution& contribution = round.of(peer.rank);
      answer.offset = contribution.counted;
      contribution.sent = static_cast<uint32_t>(header.offset);
      peer.control.emplace_back(answer, std::string());
      Offer(key, round, peer.rank);
      return peer.link->Kick();
    }
  }
  peer.control.emplace_back(answer, std::string());
  peer.link->Kick();
}

void Shard::Progress(Key& key, Round& round) {
  if (!round.Advance()) {
    if (left_ > 0 && !round.finished()) FailIfGone(key, round);
    return;
  }
  if (round.finished()) --stats_.open_rounds;
  if (Tracing() && round.finished()) TraceStage(TraceKind::kSummed, key.key, round, 0, round.began);
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) Offer(key, round, rank);
}

// Memory for a round to which somebody contributes by stream; fails the job rather than the process when the budget
// is used up.
bool Shard::Reserve(Key& key, Round& round, const Header& header) {
  if (header.flags & kByReference || round.memory() >= round.NeededMemory()) return true;
  if (!Fits(key.key, round.NeededMemory() - round.memory())) return false;
  const size_t before = round.memory();
  round.Reserve();
  stats_.memory += round.memory() - before;
  return true;
}

bool Shard::Fits(uint64_t key, size_t more) {
  if (options_.memory_limit == 0 || stats_.memory + stats_.keys * kKeyBytes + more <= options_.memory_limit)
    return true;
  FailOnLoop(Code::kCapacity, KeyText(key) + ": server shard " + std::to_string(options_.index) +
                                  " needs more than its " + std::to_string(options_.memory_limit) +
                                  " bytes of memory: raise server_memory_limit or add servers");
  return false;
}

}  // namespace byteps_like
