// Point to point: the sending side.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "collectives/point_to_point/point_impl.h"
#include "collectives/timed_out.h"

namespace byteps_like {

Deadline DeadlineAfter(double seconds) {
  constexpr double kLongest = 1e8;  // seconds: beyond that a deadline would overflow
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, kLongest)));
}

std::shared_ptr<Completion> PointImpl::Send(PointOptions options, uint32_t peer, const std::byte* data,
                                            uint64_t bytes) {
  auto sending = std::make_shared<Sending>();
  sending->done = std::make_shared<PointCompletion>(core_.gate());
  auto done = sending->done;
  if (peer >= options.ranks.size() || options.ranks[peer] == core_.rank() || bytes > kMaxOffset) {
    done->End(Status(Code::kInvalid, "send to rank " + std::to_string(peer) + " of a group of " +
                                         std::to_string(options.ranks.size()) + ": it is no other rank of the group"));
    return done;
  }
  sending->name = NameOf(options.lane | kPointLane, options.ranks[peer], options.tag, 0);
  SendMessage& message = sending->message;
  message.peer = options.ranks[peer];
  message.tag = options.tag;
  message.data = data;
  message.length = message.ready = bytes;
  message.traffic = options.traffic;
  message.priority = options.priority;
  sending->timeout = options.timeout;
  core_.loop().PostOrRun([this, sending = std::move(sending)]() mutable { Start(std::move(sending)); });
  return done;
}

void PointImpl::Start(std::shared_ptr<Sending> sending) {
  const uint32_t peer = sending->name.peer;
  Status refused = core_.failed();
  if (refused.ok() && peer >= core_.ranks()) refused = Status(Code::kInvalid, "a rank that is not in the world");
  if (refused.ok() && !core_.lost(peer).ok()) refused = Status(Code::kPeerLost, core_.lost(peer).message());
  if (refused.ok()) refused = TakeLate(sending->name.lane, peer);
  if (!refused.ok()) return sending->done->End(refused);
  Name& name = sending->name;
  name.number = numbers_[name]++;
  Flow& flow = sending->flow;
  flow.to = core_.PointWay(peer, sending->message.traffic);
  flow.id = {name.lane, name.number};
  flow.tag = sending->message.tag;
  flow.length = sending->message.length;
  Outbound& out = sending->out;
  out.message = &sending->message;
  out.flow = &flow;
  out.owner = this;
  sending->timer = core_.loop().CallAt(DeadlineAfter(sending->timeout), [this, name] { SendTimedOut(name); });
  sends_.emplace(name, sending);
  core_.Queue(out);
}

// Only for a message that may not be eager: else its first frame says it all.
void PointImpl::Launch(Flow& flow, bool ask) {
  Header header = core_.outbox(flow.to).HeaderOf(FrameType::kLaunch, flow);
  header.aux = ask ? 1 : 0;
  header.offset = flow.length;
  flow.launched = true;
  flow.asked = flow.asked || ask;
  core_.Send(flow.to, header);
}

void PointImpl::OnSent(Outbound& out) {
  if (out.message->sent != out.message->length || !out.asked_whole()) return;
  EndSend(NameOf(out.flow->id.lane, out.flow->to.peer, out.flow->tag, out.flow->id.call), {});
}

void PointImpl::EndSend(const Name& name, const Status& why) {
  const auto found = sends_.find(name);
  if (found == sends_.end()) return;
  const std::shared_ptr<Sending> sending = std::move(found->second);
  sends_.erase(found);
  core_.Withdraw(sending->out);
  core_.loop().CancelTimer(sending->timer);
  sending->done->End(why);
}

void PointImpl::SendTimedOut(const Name& name) {
  const auto found = sends_.find(name);
  if (found == sends_.end()) return;
  const Sending& sending = *found->second;
  const Status late(Code::kTimeout, "send " + TimedOut(sending.timeout) + ": " + core_.NameOf(name.peer) +
                                        " has not received a message of " + std::to_string(sending.message.length) +
                                        " bytes with tag " + std::to_string(sending.flow.tag) + " from " +
                                        core_.NameOf(core_.rank()) + " (" + std::to_string(sending.message.sent) +
                                        " bytes were sent)");
  AbortAt(sending.flow.to, name, sending.flow.tag, true, late);
  EndSend(name, late);
}

// `total` says whose message it is: 1 means that of the rank that sends this frame.
void PointImpl::AbortAt(WayTo to, const Name& name, uint32_t tag, bool from_sender, const Status& why) {
  Header header;
  header.type = FrameType::kAbort;
  header.key = name.lane;
  header.round = name.number;
  header.root = tag;
  header.aux = static_cast<uint32_t>(why.code());
  header.total = from_sender ? 1 : 0;
  core_.Send(to, header, why.message().substr(0, kMostAbortText));
}

void PointImpl::FailAll(const Status& why) {
  while (!sends_.empty()) EndSend(sends_.begin()->first, why);
  for (auto& [id, lane] : lanes_) {
    for (Posted& posted : lane.posted) EndReceive(posted, why);
    lane.posted.clear();
  }
  for (auto& [name, arrival] : arrivals_) {
    if (arrival->receive) FailReceive(*arrival, why);
  }
}

void PointImpl::CancelLane(uint64_t lane, const Status& why) {
  const uint64_t own = lane | kPointLane;
  std::vector<std::shared_ptr<Sending>> sends;
  for (const auto& [name, sending] : sends_) {
    if (name.lane == own) sends.push_back(sending);
  }
  for (const auto& sending : sends) {
    AbortAt(sending->flow.to, sending->name, sending->flow.tag, true, why);
    EndSend(sending->name, why);
  }
  if (const auto found = lanes_.find(own); found != lanes_.end()) {
    for (Posted& posted : found->second.posted) EndReceive(posted, why);
    found->second.posted.clear();
  }
  for (auto& [name, arrival] : arrivals_) {
    if (name.lane != own || !arrival->receive) continue;
    AbortAt(arrival->from, name, arrival->tag, false, why);
    FailReceive(*arrival, why);
  }
}

PointImpl::~PointImpl() {
  core_.loop().Forget(*this);
  FailAll(Status(Code::kClosed, "the communicator was closed"));
  core_.SetPointFrames(nullptr);
}

}  // namespace byteps_like
