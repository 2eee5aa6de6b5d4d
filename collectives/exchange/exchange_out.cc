// The sending side of the exchange.
#include <algorithm>
#include <chrono>
#include <utility>

#include "collectives/exchange/exchange_core.h"

namespace byteps_like {
namespace {

constexpr std::chrono::milliseconds kMixed{1000};  // so long after the last message of either kind
constexpr auto kMixInterval = std::chrono::milliseconds(20);
constexpr uint32_t kShortSegment = 32u << 10;

}  // namespace

void CallRecord::OnSent(Outbound& out) {
  SendMessage& message = *out.message;
  if (message.sent == message.length && out.asked_whole()) core.Forget(*this, out);
  call->OnSent(message);
}

void CallRecord::Launch(Flow& flow, bool ask) {
  Header header = core.outbox(flow.to).HeaderOf(FrameType::kLaunch, flow);
  header.aux = ask ? 1 : 0;
  std::string text = flow.launched ? "" : call->description;
  flow.launched = true;
  flow.asked = flow.asked || ask;
  core.Send(flow.to, header, std::move(text));
}

void ExchangeCore::Send(WayTo to, const Header& header, std::string text) {
  if (to.peer == rank_ || !peers_[to.peer]->lost.ok()) return;
  outbox(to).Control(header, std::move(text));
  mesh_->Kick(to);
}

void ExchangeCore::Answer(WayTo to, const Header& header) {
  if (!peers_[to.peer]->lost.ok() || !Charge(to.peer, kAnswerBytes)) return;
  outbox(to).Control(header, "", kAnswerBytes);
  mesh_->Kick(to);
}

// In shared memory nothing lies between the ends that a second link would go around.
WayTo ExchangeCore::PointWay(uint32_t peer, TrafficClass traffic) const {
  return {peer, traffic <= TrafficClass::kPointToPoint && !mesh_->SameHost(peer) ? Way::kUrgent : Way::kMain};
}

void ExchangeCore::Queue(Outbound& out) {
  Mix(out.flow->to, out.message->traffic);
  outbox(out.flow->to).Queue(out);
  if (out.queued) mesh_->Kick(out.flow->to);
}

void ExchangeCore::Mix(WayTo to, TrafficClass traffic) {
  if (traffic == TrafficClass::kControl || mesh_->SameHost(to.peer)) return;
  const Deadline now = Clock::now();
  (traffic >= TrafficClass::kGradient ? bulky_at_ : hurried_at_) = now;
  if (to.way == Way::kUrgent) urgent_at_ = now;
  if (mix_timer_ == 0 && now < std::min(bulky_at_, std::max(hurried_at_, told_at_)) + kMixed) LookAtMix();
}

// Most worlds never have urgent messages; their frames cost no look at the clock.
void ExchangeCore::Hear(WayTo from, const Header& header) {
  if (from.way == Way::kMain && header.type != FrameType::kHurry && urgent_at_ == Deadline{}) return;
  Peer& peer = *peers_[from.peer];
  const Deadline now = Clock::now();
  if (from.way == Way::kUrgent) hurried_at_ = urgent_at_ = now;
  if (header.type == FrameType::kHurry) told_at_ = peer.hurry = now;
  const bool bulk = from.way == Way::kMain && header.type == FrameType::kData && !mesh_->SameHost(from.peer);
  if (!bulk || now > urgent_at_ + kMixed || now < peer.told + kMixed / 2) return;
  peer.told = now;
  Header hurry;
  hurry.type = FrameType::kHurry;
  Send(from, hurry);
}

void ExchangeCore::LookAtMix() {
  mix_timer_ = 0;
  const Deadline since = Clock::now() - kMixed;
  const bool mixed = since < std::min(bulky_at_, std::max(hurried_at_, told_at_));
  for (uint32_t peer = 0; peer < peers_.size(); ++peer) {
    const bool on = mixed && since < std::max(hurried_at_, peers_[peer]->hurry);
    if (peer != rank_) outbox(peer).Limit(mesh_->KeepShort(peer, on) ? kShortSegment : kMaxPayload);
  }
  if (mixed) mix_timer_ = loop().CallAt(Clock::now() + kMixInterval, [this] { LookAtMix(); });
}

void ExchangeCore::Withdraw(Outbound& out) {
  if (outbox(out.flow->to).Remove(out)) mesh_->Keep(out.flow->to);
}

void ExchangeCore::Forget(CallRecord& record, Outbound& out) {
  Withdraw(out);
  out.message->hook = nullptr;
  const size_t slot = out.slot;
  std::swap(record.outbound[slot], record.outbound.back());
  record.outbound[slot]->slot = slot;
  record.outbound.pop_back();
}

}  // namespace byteps_like
