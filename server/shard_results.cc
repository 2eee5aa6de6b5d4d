// Results on their way out, and waits that last too long.
#include <algorithm>
#include <cstdio>

#include "server/shard.h"

namespace byteps_like {
namespace {

constexpr double kRackGrace =
    0.25;  // of a stall warning: aggregators, which know more, are to say first what they miss

}  // namespace

// The rank's link has broken since its last frame of this round: nothing of the result goes out until it says how much
// it has.
bool Shard::IsAway(const Peer& peer, const Contribution& contribution) const {
  return contribution.connection != peer.connection;
}

// The rank has said so, over the link that it has now.
void Shard::Return(const Peer& peer, Contribution& contribution) {
  if (!IsAway(peer, contribution)) return;
  contribution.connection = peer.connection;
  contribution.queued = false;
  contribution.under_way = 0;
}

// Whether the rank can have the whole result, and none of our links still reads from it for this rank. Streams know
// what they have sent before it can be answered; a device may learn it later, and is then waited for.
bool Shard::MayHaveAll(const Round& round, uint32_t rank) {
  const Contribution& contribution = round.ranks()[rank];
  if (round.total() == 0 || contribution.sent != round.total()) return false;
  const Peer& peer = *peers_[rank];
  if (IsAway(peer, contribution)) return true;
  if (contribution.queued) return false;
  if (contribution.under_way == 0) return true;
  if (!peer.link->hears_late()) return false;
  peer.link->Keep();
  return true;
}

void Shard::Offer(Key& key, Round& round, uint32_t rank) {
  Contribution& contribution = round.of(rank);
  Peer& peer = *peers_[rank];
  if (IsAway(peer, contribution) || contribution.queued || !contribution.begun || contribution.acknowledged) return;
  if (round.Readable(rank) <= contribution.sent) return;
  contribution.queued = true;
  peer.results.push({round.priority(), order_++, &round, key.key});
  peer.link->Kick();
}

bool Shard::NextResult(Peer& peer, Outgoing& next) {
  if (peer.results.empty()) return false;
  const Sendable item = peer.results.top();
  Round& round = *item.round;
  Contribution& contribution = round.of(peer.rank);
  const uint32_t readable = round.Readable(peer.rank);
  Header& header = next.header;
  header = round.Describe();
  header.type = FrameType::kResult;
  header.view = world_.epoch;
  header.member = peer.number;
  header.key = item.key;
  if ((header.flags & kEncoded) != 0) header.aux = contribution.codec;
  if (contribution.at_once()) {
    header.flags |= contribution.absent ? kAbsent : kByReference;
    contribution.answered = Tracing() ? TraceClock() : 0;
    contribution.sent = round.total();
  } else {
    const size_t segment = round.segment() != 0 ? round.segment() : options_.segment_bytes;  // as workers set it now
    if (contribution.sent == 0) contribution.answered = Tracing() ? TraceClock() : 0;
    header.offset = contribution.sent;
    header.length = static_cast<uint32_t>(std::min<size_t>(segment, readable - contribution.sent));
    next.payload = round.result() + contribution.sent;
    contribution.sent += header.length;
  }
  ++contribution.under_way;
  if (Tracing() && contribution.sent == round.total() && !contribution.absent)
    TraceStage(TraceKind::kReturned, item.key, round, peer.rank, contribution.answered);
  if (contribution.sent == readable) {
    peer.results.pop();
    contribution.queued = false;
  }
  return true;
}

void Shard::OnResultSent(const Peer& peer, const Header& header) {
  const auto found = keys_.find(header.key);
  if (found == keys_.end()) return;
  Round& round = found->second->of(header.round);
  if (!round.active() || round.number() != header.round) return;
  Contribution& contribution = round.of(peer.rank);
  if (!IsAway(peer, contribution) && contribution.under_way > 0) --contribution.under_way;
}

void Shard::TraceStage(TraceKind kind, uint64_t key, const Round& round, uint32_t peer, int64_t begin) const {
  TraceSince(begin, {.kind = kind,
                     .key = key,
                     .bytes = kind == TraceKind::kArrived ? round.ranks()[peer].total : round.total(),
                     .round = round.number(),
                     .priority = round.priority(),
                     .member = kTraceServers + world_.server,
                     .peer = peer});
}

void Shard::ArmStallCheck() {
  if (stall_check_armed_ || world_.stall_warning <= 0) return;
  stall_check_armed_ = true;
  const double period = std::clamp(std::min(world_.stall_warning, world_.stall_timeout) / 5, 0.02, 1.0);
  loop_.CallAt(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(period)),
               [this] { CheckStalls(); });
}

void Shard::CheckStalls() {
  stall_check_armed_ = false;
  for (auto& peer : peers_) peer->warned = false;
  for (auto& [id, key] : keys_)
    for (auto& round : key->rounds)
      if (failure_.ok() && round->active() && !round->finished()) CheckStall(*key, *round);
  if (failure_.ok()) CheckStoreStalls();
  if (failure_.ok()) CheckAdoptions();
  if (failure_.ok() && (stats_.open_rounds > 0 || store_.HasWaiting() || adoptions_.LongestWait())) ArmStallCheck();
}

void Shard::CheckStall(Key& key, Round& round) {
  const std::chrono::duration<double> age = Clock::now() - round.last_progress();
  if (age.count() < world_.stall_warning && age.count() < world_.stall_timeout) return;
  if (IsAbandoned(round)) return;
  if (relay_ && round.summed() == round.total()) return;  // its owner warns, and that it is silent is noticed (Relay)
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", age.count());
  const std::string text =
      KeyText(key.key) + ", round " + std::to_string(round.number()) + ": " + round.WaitingFor() + " for " + seconds;
  const double grace = seats_.size() > seats_.ranks() ? world_.stall_warning * kRackGrace : 0;
  if (age.count() >= world_.stall_timeout + grace) return FailOnLoop(Code::kStalled, text);
  // Repeated every so often, so that waiting ranks know that this server is alive.
  const auto warnings = static_cast<uint32_t>(age.count() / world_.stall_warning);
  if (!round.WarnOnce(warnings)) return;
  Warn(round, text);
}

// One warning to each waiting rank is enough, however many rounds wait for the same rank. Ranks that don't read their
// warnings get none.
void Shard::Warn(const Round& round, const std::string& text) {
  bool news = false;
  for (auto& peer : peers_) {
    if (peer->warned || !peer->link || !round.ranks()[peer->rank].begun) continue;
    peer->warned = news = true;
    if (peer->control.empty()) SendText(*peer, FrameType::kWarning, Code::kStalled, text);
  }
  if (news) options_.on_event(world_.epoch, Code::kStalled, text, false);
}

}  // namespace byteps_like
