// Contributions on their way in.
#include <algorithm>
#include <utility>

#include "csrc/codec/payload.h"
#include "server/shard.h"

namespace byteps_like {

namespace {

constexpr uint64_t kPrelude = uint64_t{1} << 63;  // in the keys of preludes

}  // namespace

std::string KeyText(uint64_t key) {
  return ((key & kPrelude) != 0 ? "the prelude of key " : "key ") + std::to_string(key & ~kPrelude);
}

Shard::Key::Key(uint64_t number, ShardMemory& memory, const Combine& combine)
    : key(number), memory(memory), kinds{&combine, &combine} {
  for (auto& round : rounds) round = combine.make(key, memory);
}

Round& Shard::Key::Renew(uint32_t round, const PolicyRow& row) {
  std::unique_ptr<Round>& place = rounds[round & 1];
  const Combine*& kind = kinds[round & 1];
  if (kind == row.combine) return *place;
  if (place->lent_to() != kNobody) lent.push_back(std::move(place));
  kind = row.combine;
  place = kind->make(key, memory);
  return *place;
}

KeyPolicy Shard::Key::Open(const PolicyRow& row) {
  if (row.update == nullptr) return {row};
  if (updated_by != &row) update = row.update(memory);
  updated_by = &row;
  return {row, update.get()};
}

// Fails the job and returns nullptr if no row opens such rounds. The default table has one for every valid push.
const PolicyRow* Shard::PolicyOf(const Header& header, const Terms& terms) {
  const PolicyRow* const row = FindPolicy(options_.policies, terms);
  if (row == nullptr)
    FailOnLoop(Code::kInvalid, KeyText(header.key) + ": " + Describe(terms) + ": no policy is for such rounds");
  return row;
}

Shard::Key* Shard::FindOrMake(const Header& header, const Terms& terms) {
  const auto found = keys_.find(header.key);
  if (found != keys_.end()) return found->second.get();
  if (given_up_.contains(header.key)) return nullptr;
  const PolicyRow* const row = PolicyOf(header, terms);
  if (row == nullptr) return nullptr;
  if (!memory_.Charge(KeyBytes())) {
    const Status full = memory_.Exhausted();
    FailOnLoop(full.code(), KeyText(header.key) + ": " + full.message());
    return nullptr;
  }
  ++stats_.keys;
  Key* const made =
      keys_.emplace(header.key, std::make_unique<Key>(header.key, memory_, *row->combine)).first->second.get();
  return BeginsAt(*made, header) ? made : nullptr;
}

// The codec that an encoded push names; nullptr if its link has announced none by that number.
const ServerCodec* Shard::CodecOf(const Peer& peer, const Header& header) const {
  return header.aux < peer.codecs.size() ? peer.codecs[header.aux] : nullptr;
}

// Checks what the frame's own bounds leave open.
bool Shard::MakesSense(const Peer& peer, const Header& header) {
  const char* why = nullptr;
  if ((header.flags & (kNoted | kSilent)) != 0) {
    why = "it is of no store key that was announced";
  } else if ((header.flags & kEncoded) != 0) {
    if (CodecOf(peer, header) == nullptr) why = "encoded by a codec that was not announced";
    if (header.op != Op::kSum && header.op != Op::kAverage) why = "only sums and averages can be encoded";
    if (header.dtype != DType::kFloat32) why = "only float32 can be encoded";
    if (header.total <= kPayloadHeader) why = "too short for a payload";
  } else {
    if (header.total == 0 || header.total % SizeOf(header.dtype) != 0) why = "no whole elements";
    if (header.op == Op::kBroadcast && header.root >= world_.size()) why = "there is no such rank";
    if (!Supports(header.op, header.dtype)) why = "there is no such operation";
    if (header.op == Op::kBroadcast && (header.flags & kAbsent) != 0) why = "absent from a broadcast";
  }
  if (why == nullptr) return true;
  Blame(peer, KeyText(header.key) + ": " + Describe(TermsOf(header, nullptr)) + ": " + why);
  return false;
}

// The round a push belongs to, with memory for it; nullptr if it is wrong (the job has failed then), or of a key that
// was given up.
Round* Shard::RoundFor(Peer& peer, const Header& header, Key** out) {
  if (!MakesSense(peer, header)) return nullptr;
  const Terms terms = TermsOf(header, (header.flags & kEncoded) != 0 ? CodecOf(peer, header) : nullptr);
  Key* const found = FindOrMake(header, terms);
  if (found == nullptr) return nullptr;
  Key& key = *found;
  *out = found;
  Round& current = key.of(header.round);
  if (current.active() && current.number() == header.round)
    return Join(key, current, header, terms) && MayTakePart(peer, key, current) && Reserve(key, current, header)
               ? &current
               : nullptr;
  if (!Acknowledge(key, header)) return nullptr;
  if (header.round != key.next || current.active()) {
    FailOnLoop(Code::kMismatch, KeyText(key.key) + ": " + seats_.Name(peer.rank) + " is at round " +
                                    std::to_string(header.round) + ", the others at " + std::to_string(key.next) +
                                    ": the ranks have used this name in different numbers of rounds");
    return nullptr;
  }
  const PolicyRow* const row = PolicyOf(header, terms);
  if (row == nullptr) return nullptr;
  Round& round = key.Renew(header.round, *row);
  KeyPolicy policy = key.Open(*row);
  policy.relayed = relay_ != nullptr;
  round.Begin(header, terms, policy, seats_);
  round.began = Tracing() ? TraceClock() : 0;
  ++key.next;
  ++stats_.rounds;
  ++stats_.open_rounds;
  ArmStallCheck();
  ExcuseThoseBeyond(key, round);
  if (left_ > 0) LeaveOutGone(key, round);
  return failure_.ok() && Reserve(key, round, header) ? &round : nullptr;
}

// A rank's bytes count once, by whichever way they come.
bool Shard::MayTakePart(const Peer& peer, const Key& key, const Round& round) {
  if (round.ranks()[peer.rank].begun) return true;
  const uint32_t rival = round.RivalOf(peer.rank);
  if (rival == kNobody) return true;
  FailRound(key, round,
            Status(Code::kMismatch, "contributions of the same ranks come from " + seats_.Name(rival) + " and from " +
                                        seats_.Name(peer.rank) + ": the ranks disagree about racks"));
  return false;
}

bool Shard::Join(Key& key, Round& round, const Header& header, const Terms& terms) {
  const std::string difference = round.Disagreement(header, terms);
  if (difference.empty()) return Acknowledge(key, header);
  FailRound(key, round, Status(Code::kMismatch, "the ranks disagree: " + difference));
  return false;
}

// Fails the job rather than the process when the budget is used up.
bool Shard::Reserve(Key& key, Round& round, const Header& header) {
  const Status reserved = round.Reserve(header);
  if (!reserved.ok()) FailRound(key, round, reserved);
  return reserved.ok();
}

// A push of round r + 1 says that the rank has its result of r, and wants no more of it: no queue holds a round that is
// released, and no link reads from it.
bool Shard::Acknowledge(Key& key, const Header& header) {
  Round& before = key.of(header.round - 1);
  if (!before.active() || before.number() != header.round - 1) return true;
  if (before.ranks()[header.rank].acknowledged) return true;  // it was beyond that when its server died
  if (!MayHaveAll(before, header.rank)) {
    Blame(*peers_[header.rank], KeyText(key.key) + ": the rank begins a round without the result of the previous one");
    return false;
  }
  if (before.Acknowledge(header.rank)) before.Release();
  return true;
}

void Shard::OnPush(Peer& peer, const Header& header, const std::byte* payload) {
  Key* key = nullptr;
  Round* const round = RoundFor(peer, header, &key);
  if (round == nullptr) return;
  Contribution& contribution = round->of(peer.rank);
  if (!contribution.begun) Return(peer, contribution);
  if (contribution.begun && contribution.absent != ((header.flags & kAbsent) != 0))
    return Blame(peer, KeyText(header.key) + ": the rank is both absent and present in one round");
  round->Note(header);
  if (!contribution.begun && seats_.is_aggregator(peer.rank) && header.aux != 0) {
    if (header.aux >= seats_.weight(peer.rank))
      return Blame(peer, KeyText(header.key) + ": it counts too many as absent");
    round->Lack(header.aux);
  }
  if (header.flags & kAbsent) return OnAbsent(peer, *key, *round);
  if (header.flags & kByReference) return OnReference(peer, *key, *round, header);
  if (contribution.referred) return OnStreamOfReferred(peer, *key, *round, header);
  if (!round->Brings(peer.rank)) {
    round->Subscribe(peer.rank);
    if (Tracing()) TraceStage(TraceKind::kArrived, key->key, *round, peer.rank, 0);
    return Progress(*key, *round, peer.rank);
  }
  OnSegment(peer, *key, *round, header, payload);
}

void Shard::OnSegment(Peer& peer, Key& key, Round& round, const Header& header, const std::byte* payload) {
  const Contribution& contribution = round.of(peer.rank);
  const bool encoded = (header.flags & kEncoded) != 0;
  const size_t unit = encoded ? 1 : SizeOf(header.dtype);
  if (header.offset > contribution.counted || header.offset % unit != 0 || header.length % unit != 0)
    return Blame(peer, KeyText(header.key) + ": a segment is out of order or splits an element");
  const uint64_t end = header.offset + header.length;
  if (end <= contribution.counted && header.length > 0) stats_.repeated += header.length;
  if (Link* const other = round.InTheWay(*peer.link, header)) {
    other->Redirect(kAnywhere);
    round.Abandon(*other);
  }
  const bool completes = !round.Has(peer.rank) && end == header.total;
  const Status landed = round.Land(*peer.link, header, payload);
  if (!landed.ok()) return FailRound(key, round, landed);
  if (encoded && completes) stats_.encoded += header.total;
  if (Tracing() && end == header.total) TraceStage(TraceKind::kArrived, key.key, round, peer.rank, 0);
  Progress(key, round, peer.rank);
}

void Shard::OnReference(Peer& peer, Key& key, Round& round, const Header& header) {
  const auto found = peer.regions.find(header.aux);
  if (found != peer.regions.end() && found->second == nullptr) return;  // it hears so, and sends it instead
  if (found == peer.regions.end() || header.offset > found->second->size() ||
      header.total > found->second->size() - header.offset)
    return Blame(peer, KeyText(header.key) + ": a push refers to memory that was not shared");
  stats_.referenced += header.total;
  if (!round.of(peer.rank).begun) {
    round.Refer(peer.rank, {found->second, found->second->data() + header.offset});
    if (Tracing()) TraceStage(TraceKind::kArrived, key.key, round, peer.rank, 0);
  } else {
    AnswerAgain(key, round, peer.rank);
  }
  Progress(key, round, peer.rank);
}

// It was counted where it lies, over a link before this one, by which the memory can't be shared any more.
void Shard::OnStreamOfReferred(Peer& peer, Key& key, Round& round, const Header& header) {
  const bool whole = header.offset + header.length == header.total;
  if (whole || !round.Brings(peer.rank)) AnswerAgain(key, round, peer.rank);
}

void Shard::OnAbsent(Peer& peer, Key& key, Round& round) {
  if (round.of(peer.rank).begun) {
    AnswerAgain(key, round, peer.rank);
  } else {
    round.Excuse(peer.rank);
  }
  Progress(key, round, peer.rank);
}

// It was pushed again over a new link: the frame that answers it may have been lost.
void Shard::AnswerAgain(Key& key, Round& round, uint32_t rank) {
  Return(*peers_[rank], round.of(rank));
  round.of(rank).sent = 0;
  Offer(key, round, rank);
}

// After something of this rank's.
void Shard::Progress(Key& key, Round& round, uint32_t rank) {
  const uint32_t before = round.summed();
  auto more = round.Advance();
  if (!more.ok()) return FailRound(key, round, more.status());
  if (!*more) {
    if (left_ > 0 && !world_.elastic && !round.finished()) FailIfGone(key, round);
    if (round.complete() > 0) Offer(key, round, rank);  // which may read more, or was late
    return;
  }
  if (!relay_) return HandOut(key, round);
  if (const Status passed = relay_->PassOn(key.key, round); !passed.ok()) FailRound(key, round, passed);
  stats_.relayed_up += round.summed() - before;
}

// There is more of the result.
void Shard::HandOut(Key& key, Round& round) {
  if (round.finished()) --stats_.open_rounds;
  if (round.finished()) Lend(key, round);
  if (Tracing() && round.finished()) TraceStage(TraceKind::kSummed, key.key, round, 0, round.began);
  for (const auto& peer : peers_) Offer(key, round, peer->rank);
}

// The rank that came first becomes the tenant in the following rounds of this parity, because it will usually be first
// again. It writes there in the next of them, two rounds later, at the earliest. By then it has all of the result in
// between, which all ranks have pushed for, so they have this one. The previous tenant is told that it no longer is
// before it is told of that result.
void Shard::Lend(const Key& key, Round& round) {
  const std::span<std::byte> place = round.Lendable();
  const uint32_t before = round.lent_to();
  const uint32_t tenant = memory_.is_ample() ? round.came_first() : kNobody;
  if (place.empty() || (tenant == kNobody && before == kNobody)) return;
  if (before != kNobody && before != tenant) LendTo(before, key, round.number(), {});
  const bool lent = tenant != kNobody && LendTo(tenant, key, round.number(), place);
  if (lent || before != kNobody) round.Lend(lent ? tenant : kNobody);
}

// False: its link can't write there by itself.
bool Shard::LendTo(uint32_t rank, const Key& key, uint32_t round, std::span<std::byte> place) {
  Link* const link = peers_[rank]->link.get();
  Header about;
  about.type = FrameType::kPush;
  about.key = key.key;
  about.round = round;
  return link != nullptr && link->Offer(about, place.data(), place.size());
}

}  // namespace byteps_like
