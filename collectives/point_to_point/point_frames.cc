// Point to point: frames that come.
#include <algorithm>
#include <string>
#include <utility>

#include "collectives/point_to_point/point_impl.h"

namespace byteps_like {

// The message that a frame is about; nullptr for one that is over.
PointImpl::Arrival* PointImpl::Incoming(WayTo from, const Header& header, uint64_t length) {
  const Name name = NameOf(header.key, from.peer, header.root, header.round);
  const auto found = arrivals_.find(name);
  if (found != arrivals_.end()) return found->second.get();
  Name counted = name;
  counted.number = 0;
  const auto [turn, first] = turns_.try_emplace(counted, 0);
  if (first && !core_.Charge(from.peer, kCounterBytes)) return turns_.erase(turn), nullptr;
  if (static_cast<int32_t>(name.number - turn->second) < 0) return nullptr;
  if (!core_.Charge(from.peer, kArrivalBytes)) return nullptr;
  auto arrival = std::make_unique<Arrival>();
  arrival->name = name;
  arrival->tag = header.root;
  arrival->from = from;
  arrival->length = length;
  Arrival& added = *arrivals_.emplace(name, std::move(arrival)).first->second;
  return &added;
}

std::byte* PointImpl::PlaceFor(WayTo from, const Header& header) {
  Arrival* const arrival = Incoming(from, header, MessageLength(header));
  if (arrival == nullptr) return kAnywhere;
  const bool fits = from == arrival->from && header.offset == arrival->arrived &&
                    MessageLength(header) == arrival->length && header.offset + header.length <= arrival->length;
  if (!fits) {
    core_.Violation(from.peer, "bytes of a message out of order");
    return kAnywhere;
  }
  if (!arrival->in_turn && !arrival->dropped) TakeTurns(*arrival);
  if (!arrival->dropped && !arrival->receive && !IsEager(header)) {
    core_.Violation(from.peer, "data of a message that no receive has asked for");
    return kAnywhere;
  }
  arrival->landing = header.length;
  if (arrival->dropped) return kAnywhere;
  if (arrival->receive && arrival->stash.empty()) {
    arrival->direct = true;
    return arrival->receive->place + header.offset;
  }
  Block block;
  block.bytes = std::make_unique_for_overwrite<std::byte[]>(header.length);
  block.length = header.length;
  block.eager = IsEager(header);
  arrival->direct = false;
  std::byte* const place = block.bytes.get();
  coming_[from] = std::move(block);
  return place;
}

void PointImpl::OnFrame(WayTo from, const Header& header, std::byte* payload) {
  const Name name = NameOf(header.key, from.peer, header.root, header.round);
  switch (header.type) {
    case FrameType::kData:
      return OnData(from, header);
    case FrameType::kLaunch:
      if (Arrival* const arrival = Incoming(from, header, header.offset)) {
        arrival->wants_clear = header.aux == 1;
        if (!arrival->in_turn) return TakeTurns(*arrival);
        // Its first bytes came before: the receive may be posted by now.
        if (arrival->receive) Clear(*arrival);
      }
      return;
    case FrameType::kClear:
      if (const auto found = sends_.find(name); found != sends_.end()) {
        core_.outbox(from).Cleared(found->second->flow);
        core_.mesh().Kick(from);
      }
      return;
    case FrameType::kAbort:
      if (header.length > kMostAbortText) return core_.Violation(from.peer, "a reason of more than 8 KiB");
      return OnAbort(from, header, std::string(reinterpret_cast<const char*>(payload), header.length));
    default:
      return core_.Violation(from.peer, "a frame of type " + std::to_string(static_cast<int>(header.type)));
  }
}

void PointImpl::OnData(WayTo from, const Header& header) {
  if (header.length == 0) {
    Arrival* const empty = Incoming(from, header, MessageLength(header));
    if (empty == nullptr) return;
    empty->empty_came = true;
    if (!empty->in_turn && !empty->dropped) return TakeTurns(*empty);
    if (empty->dropped) return Erase(Name(empty->name));
    if (empty->receive) Took(*empty, 0, false);
    return;
  }
  Block block = std::exchange(coming_[from], {});
  const auto found = arrivals_.find(NameOf(header.key, from.peer, header.root, header.round));
  if (found == arrivals_.end()) {
    if (IsEager(header)) core_.ReturnCredit(from, header.length);
    return;
  }
  Arrival& arrival = *found->second;
  // Bytes that were not due have no place and must not be counted, or the message could look complete without them.
  if (from != arrival.from || std::exchange(arrival.landing, 0) == 0) return;
  arrival.arrived += header.length;
  if (arrival.dropped) {
    if (IsEager(header)) core_.ReturnCredit(from, header.length);
    if (IsWhole(arrival)) Erase(Name(arrival.name));
    return;
  }
  if (arrival.direct) return Took(arrival, header.length, IsEager(header));
  arrival.stash.push_back(std::move(block));
  if (arrival.receive) core_.loop().Defer(*this);
}

void PointImpl::OnAbort(WayTo from, const Header& header, const std::string& text) {
  const Status why(CodeFrom(header.aux),
                   text.empty() ? core_.NameOf(from.peer) + " failed the call without a reason" : text);
  const Name name = NameOf(header.key, from.peer, header.root, header.round);
  if (header.total == 0) {  // the receiver does not take our message
    if (sends_.contains(name)) {
      AbortAt(from, name, header.root, true, why);  // nothing more of it will come
      return EndSend(name, why);
    }
    if (why.code() != Code::kMismatch) return;
    const auto [late, first] = late_.try_emplace({header.key, from.peer}, why);
    if (!first) {
      late->second = why;
    } else if (!core_.Charge(from.peer, kArrivalBytes + kMostAbortText)) {
      late_.erase(late);
    }
    return;
  }
  Arrival* const arrival = Incoming(from, header, 0);
  if (arrival == nullptr) return;
  if (arrival->receive) FailReceive(*arrival, why);
  DropArrival(*arrival);
  if (!arrival->in_turn) TakeTurns(*arrival);
  if (arrival->in_turn) Erase(Name(arrival->name));
}

void PointImpl::Erase(const Name& name) {
  const auto found = arrivals_.find(name);
  if (found == arrivals_.end()) return;
  if (const auto lane = lanes_.find(name.lane); lane != lanes_.end()) {
    lane->second.in_line.remove(found->second.get());
    if (lane->second.in_line.empty() && lane->second.posted.empty()) lanes_.erase(lane);
  }
  arrivals_.erase(found);
  core_.Refund(name.peer, kArrivalBytes);
}

// A failure of a send that had ended: the next call with this peer is told.
Status PointImpl::TakeLate(uint64_t lane, uint32_t peer) {
  const auto late = late_.find({lane, peer});
  if (late == late_.end()) return {};
  Status why = std::move(late->second);
  late_.erase(late);
  core_.Refund(peer, kArrivalBytes + kMostAbortText);
  return why;
}

void PointImpl::OnPeerLost(uint32_t peer, const Status& why) {
  std::erase_if(coming_, [peer](const auto& coming) { return coming.first.peer == peer; });
  std::vector<Name> sends;
  for (const auto& [name, sending] : sends_) {
    if (name.peer == peer) sends.push_back(name);
  }
  for (const Name& name : sends) EndSend(name, why);
  std::vector<Name> cut_short;  // no receive of later may wait for the rest
  for (auto& [name, arrival] : arrivals_) {
    if (name.peer != peer) continue;
    arrival->landing = 0;
    if (IsWhole(*arrival)) continue;
    if (arrival->receive) {
      FailReceive(*arrival, why);
    } else {
      DropArrival(*arrival);
    }
    cut_short.push_back(name);
  }
  for (const Name& name : cut_short) Erase(name);
  const bool left = core_.lost(peer).code() == Code::kClosed;
  for (auto& [id, lane] : lanes_) {
    for (auto at = lane.posted.begin(); at != lane.posted.end();) {
      const auto& ranks = at->options.ranks;
      const bool any = at->peer == kAnySource && !left && std::find(ranks.begin(), ranks.end(), peer) != ranks.end();
      if (at->peer != static_cast<int32_t>(peer) && !any) {
        ++at;
        continue;
      }
      EndReceive(*at, why);
      at = lane.posted.erase(at);
    }
  }
}

}  // namespace byteps_like
