// How calls of the exchange fail: on this rank, and told to the others.
#include <cstdio>
#include <utility>

#include "collectives/exchange/exchange_core.h"
#include "collectives/host/host_side.h"

namespace byteps_like {
namespace {

std::string LaneText(uint64_t lane) {
  char text[32];
  std::snprintf(text, sizeof(text), "%llx", static_cast<unsigned long long>(lane));
  return text;
}

}  // namespace

std::string ExchangeCore::Differ(const CallRecord& record, const Flow& flow) const {
  return "call " + std::to_string(record.id.call) + " of group " + LaneText(record.id.lane) + ": " + NameOf(rank_) +
         " is in \"" + record.call->description + "\", " + NameOf(flow.to.peer) + " is in \"" + flow.description +
         "\": the ranks of a group must make the same calls in the same order";
}

Status ExchangeCore::LossOf(uint32_t peer) const {
  const Status& lost = peers_[peer]->lost;
  return lost.code() == Code::kClosed ? Status(Code::kPeerLost, lost.message()) : lost;
}

void ExchangeCore::Flood(const Call& call, const Status& why) {
  Header header;
  header.type = FrameType::kAbort;
  header.key = call.id.lane & ~kPointLane;
  header.round = call.id.call;
  header.aux = static_cast<uint32_t>(why.code());
  for (const uint32_t peer : call.ranks) {
    if (peer < peers_.size()) Send(peer, header, why.message().substr(0, kMostAbortText));
  }
}

// Never inside a call of the caller's: from the loop.
void ExchangeCore::FailLater(CallRecord& record, const Status& why, bool flood) {
  if (!record.failed.ok() || why.ok()) return;
  record.failed = why;
  record.flood = flood;
  failures_.push_back(record.id);
  loop().Defer(*this);
}

void ExchangeCore::FailNow(CallId id) {
  CallRecord* const record = Find(id);
  if (record == nullptr || record->failed.ok()) return;
  const Status why = record->failed;
  Call* const call = record->call;
  if (call == nullptr) {  // it will be told when it begins
    while (!record->inbound.empty()) EraseInbound(record->inbound.begin()->second);
    return;
  }
  if (record->flood) Flood(*call, why);
  if (Close(*record, why)) call->OnFailed(why);
}

// A rank of the group is lost, perhaps one that we have no link with. No later call of the group can end, whether or
// not the rank that told us makes that call, too.
void ExchangeCore::BreakLane(const CallId& id, const Status& why) {
  if (!broken_.try_emplace(id.lane, Broken{id.call, why}).second) return;
  for (const auto& [other, record] : calls_) {
    if (other.lane == id.lane && other.call > id.call && record->call != nullptr) FailLater(*record, why, false);
  }
}

bool ExchangeCore::Close(CallRecord& record, const Status& why) {
  const CallId id = record.id;
  while (!record.outbound.empty()) Forget(record, *record.outbound.back());
  const bool over = WithdrawAll(record, why);
  while (!record.inbound.empty()) EraseInbound(record.inbound.begin()->second);
  for (const auto& flow : record.flows) Refund(flow->to.peer, flow->charged);
  if (record.call != nullptr) --begun_;
  lanes_[id.lane].Add(id.call);
  calls_.erase(id);
  return over;
}

bool ExchangeCore::Unfinished(const CallRecord& record, uint32_t peer) const {
  for (const auto& out : record.outbound) {
    if (out->flow->to.peer == peer) return true;
  }
  for (const auto& [key, in] : record.inbound) {
    if (in.peer == peer && in.message != nullptr && !in.arrived_whole()) return true;
  }
  return false;
}

// Fails each call that still needs the peer, and tells the other ranks. A call whose messages with the peer are done
// goes on, since it may have ended on the peer's side, too.
void ExchangeCore::OnPeerLost(uint32_t peer, const Status& why) {
  Peer& gone = *peers_[peer];
  gone.lost = why;
  gone.left = why.code() == Code::kClosed;
  for (Port& end : gone.ports) {
    end.outbox.Drop();
    end.landing = {};
  }
  for (const auto& [id, record] : calls_) {
    if (record->call != nullptr && Unfinished(*record, peer)) FailLater(*record, LossOf(peer), true);
  }
  if (points_ != nullptr) points_->OnPeerLost(peer, LossOf(peer));
  if (host_ != nullptr) host_->OnPeerLost(peer, LossOf(peer));
}

void ExchangeCore::FailAll(const Status& why) {
  if (!failed_.ok()) return;
  failed_ = why;
  for (const auto& [id, record] : calls_) {
    if (record->call != nullptr) FailLater(*record, why, false);
  }
}

}  // namespace byteps_like
