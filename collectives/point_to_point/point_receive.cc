// Point to point: receives, and the messages that they are for.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/point_to_point/point_impl.h"
#include "collectives/timed_out.h"

namespace byteps_like {

std::shared_ptr<Completion> PointImpl::Receive(PointOptions options, int32_t peer, std::byte* place, uint64_t bytes) {
  auto done = std::make_shared<PointCompletion>(core_.gate());
  const bool any = peer == kAnySource;
  const bool other = peer >= 0 && static_cast<size_t>(peer) < options.ranks.size() &&
                     options.ranks[static_cast<size_t>(peer)] != core_.rank();
  if (!any && !other) {
    done->End(Status(Code::kInvalid, "receive from rank " + std::to_string(peer) + " of a group of " +
                                         std::to_string(options.ranks.size()) + ": it is no other rank of the group"));
    return done;
  }
  auto posted = std::make_shared<Posted>();
  posted->peer = any ? kAnySource : static_cast<int32_t>(options.ranks[static_cast<size_t>(peer)]);
  posted->place = place;
  posted->bytes = bytes;
  posted->done = done;
  posted->options = std::move(options);
  posted->options.lane |= kPointLane;
  core_.loop().PostOrRun([this, posted = std::move(posted)] { StartReceive(std::move(*posted)); });
  return done;
}

bool PointImpl::Fits(const Posted& posted, const Arrival& arrival) const {
  if (posted.options.tag != arrival.tag) return false;
  return posted.peer == kAnySource || static_cast<uint32_t>(posted.peer) == arrival.name.peer;
}

void PointImpl::StartReceive(Posted posted) {
  if (!core_.failed().ok()) return posted.done->End(core_.failed());
  posted.id = ++ids_;
  Lane& lane = lanes_[posted.options.lane];
  for (auto at = lane.in_line.begin(); at != lane.in_line.end(); ++at) {
    if (!Fits(posted, **at)) continue;
    Arrival& arrival = **at;
    lane.in_line.erase(at);
    posted.timer =
        core_.loop().CallAt(DeadlineAfter(posted.options.timeout),
                            [this, lane_id = posted.options.lane, id = posted.id] { ReceiveTimedOut(lane_id, id); });
    return Bind(arrival, std::move(posted));
  }
  for (const uint32_t rank : posted.options.ranks) {
    if (posted.peer != kAnySource && static_cast<uint32_t>(posted.peer) != rank) continue;
    if (rank >= core_.ranks()) return posted.done->End(Status(Code::kInvalid, "a rank that is not in the world"));
    const Status& lost = core_.lost(rank);
    const bool matters = !lost.ok() && (posted.peer != kAnySource || lost.code() != Code::kClosed);
    if (matters) return posted.done->End(Status(Code::kPeerLost, lost.message()));
  }
  if (posted.peer != kAnySource) {
    const auto peer = static_cast<uint32_t>(posted.peer);
    if (const Status late = TakeLate(posted.options.lane, peer); !late.ok()) return posted.done->End(late);
    core_.mesh().Kick(core_.PointWay(peer, posted.options.traffic));  // a link that breaks tells of its death
  }
  posted.timer =
      core_.loop().CallAt(DeadlineAfter(posted.options.timeout),
                          [this, lane_id = posted.options.lane, id = posted.id] { ReceiveTimedOut(lane_id, id); });
  lane.posted.push_back(std::move(posted));
}

std::string PointImpl::PeerText(const Posted& posted) const {
  if (posted.peer != kAnySource) return core_.NameOf(static_cast<uint32_t>(posted.peer)) + " has not sent";
  std::string text = "none of";
  for (const uint32_t rank : posted.options.ranks) {
    if (rank != core_.rank()) text += (text.size() > 7 ? ", " : " ") + core_.NameOf(rank);
  }
  return text + " has sent";
}

void PointImpl::ReceiveTimedOut(uint64_t lane_id, uint64_t id) {
  const auto text = [&](const Posted& posted) {
    return Status(Code::kTimeout, "receive " + TimedOut(posted.options.timeout) + ": " + PeerText(posted) +
                                      " a message of " + std::to_string(posted.bytes) + " bytes with tag " +
                                      std::to_string(posted.options.tag) + " to " + core_.NameOf(core_.rank()));
  };
  Lane& lane = lanes_[lane_id];
  for (auto at = lane.posted.begin(); at != lane.posted.end(); ++at) {
    if (at->id != id) continue;
    EndReceive(*at, text(*at));
    lane.posted.erase(at);
    return;
  }
  for (auto& [name, arrival] : arrivals_) {
    if (!arrival->receive || arrival->receive->id != id) continue;
    const Status late = text(*arrival->receive);
    AbortAt(arrival->from, name, arrival->tag, false, late);
    return FailReceive(*arrival, late);
  }
}

void PointImpl::EndReceive(Posted& posted, const Status& why) {
  core_.loop().CancelTimer(posted.timer);
  posted.done->End(why);
}

// Matching ------------------------------------------------------------------------------------------------------------

// Messages of one line from one peer are matched in the order in which they were sent, whatever came first.
void PointImpl::TakeTurns(Arrival& arrival) {
  Name counted = arrival.name;
  counted.number = 0;
  uint32_t& turn = turns_[counted];
  for (Name name = arrival.name; name.number == turn; ++name.number) {
    const auto found = arrivals_.find(name);
    if (found == arrivals_.end()) return;
    ++turn;
    found->second->in_turn = true;
    Match(*found->second);
  }
}

void PointImpl::Match(Arrival& arrival) {
  if (arrival.dropped) return;
  Lane& lane = lanes_[arrival.name.lane];
  for (auto at = lane.posted.begin(); at != lane.posted.end(); ++at) {
    if (!Fits(*at, arrival)) continue;
    Posted posted = std::move(*at);
    lane.posted.erase(at);
    return Bind(arrival, std::move(posted));
  }
  lane.in_line.push_back(&arrival);
}

void PointImpl::Bind(Arrival& arrival, Posted posted) {
  const bool same = posted.bytes == arrival.length;
  const Status differs(Code::kMismatch, core_.NameOf(arrival.name.peer) + " sends " + std::to_string(arrival.length) +
                                            " bytes with tag " + std::to_string(arrival.tag) + " where " +
                                            core_.NameOf(core_.rank()) + " expects " + std::to_string(posted.bytes));
  arrival.receive = std::move(posted);
  if (!same) {
    AbortAt(arrival.from, arrival.name, arrival.tag, false, differs);
    return FailReceive(arrival, differs);
  }
  if (arrival.wants_clear) Clear(arrival);
  if (!arrival.stash.empty() || IsWhole(arrival)) core_.loop().Defer(*this);
}

void PointImpl::Clear(const Arrival& arrival) {
  Flow flow;
  flow.id = {arrival.name.lane, arrival.name.number};
  flow.tag = arrival.tag;
  core_.Answer(arrival.from, core_.outbox(arrival.from).HeaderOf(FrameType::kClear, flow));
}

// Moves stashed bytes into place, for all messages that have one now.
void PointImpl::RunDeferred() {
  for (auto at = arrivals_.begin(); at != arrivals_.end();) {
    Arrival& arrival = *(at++)->second;  // may be erased
    if (arrival.receive) Deliver(arrival);
  }
}

void PointImpl::Deliver(Arrival& arrival) {
  while (!arrival.stash.empty()) {
    const Block block = std::move(arrival.stash.front());
    arrival.stash.pop_front();
    std::memcpy(arrival.receive->place + arrival.taken, block.bytes.get(), block.length);
    arrival.taken += block.length;
    if (block.eager) core_.ReturnCredit(arrival.from, block.length);
  }
  Took(arrival, 0, false);
}

bool PointImpl::IsWhole(const Arrival& arrival) const {
  return arrival.length == 0 ? arrival.empty_came : arrival.arrived == arrival.length;
}

void PointImpl::Took(Arrival& arrival, uint64_t bytes, bool eager) {
  arrival.taken += bytes;
  if (eager) core_.ReturnCredit(arrival.from, bytes);
  if (!IsWhole(arrival) || arrival.taken != arrival.length) return;
  const Posted posted = std::move(*arrival.receive);
  const auto& ranks = posted.options.ranks;
  const auto source = std::find(ranks.begin(), ranks.end(), arrival.name.peer) - ranks.begin();
  core_.loop().CancelTimer(posted.timer);
  Erase(Name(arrival.name));
  posted.done->End(static_cast<uint32_t>(source), posted.bytes);
}

// Failure -------------------------------------------------------------------------------------------------------------

// The receive ends; the rest of the message is thrown away.
void PointImpl::FailReceive(Arrival& arrival, const Status& why) {
  Posted posted = std::move(*arrival.receive);
  arrival.receive.reset();
  DropArrival(arrival);
  EndReceive(posted, why);
}

void PointImpl::DropArrival(Arrival& arrival) {
  arrival.dropped = true;
  for (const Block& block : arrival.stash) {
    if (block.eager) core_.ReturnCredit(arrival.from, block.length);
  }
  arrival.stash.clear();
  if (arrival.landing > 0 && arrival.direct) {
    core_.mesh().Redirect(arrival.from, kAnywhere);
  }
  arrival.direct = false;
  lanes_[arrival.name.lane].in_line.remove(&arrival);
}

}  // namespace byteps_like
