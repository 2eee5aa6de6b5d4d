// What the exchange sends.
#include <algorithm>
#include <chrono>
#include <utility>

#include "collectives/exchange_core.h"

namespace byteps_like {
namespace {

constexpr auto kMixed = std::chrono::seconds(1);  // so long after the last message of either kind
constexpr auto kMixInterval = std::chrono::milliseconds(50);
constexpr uint32_t kShortSegment = 32u << 10;

}  // namespace

void CallRecord::OnSent(Outbound& out) {
  SendMessage& message = *out.message;
  if (message.sent == message.length && out.asked_whole()) core.Forget(*this, out);
  call->OnSent(message);
}

void CallRecord::Launch(Flow& flow, bool ask) {
  Header header = core.outbox(flow.peer).HeaderOf(FrameType::kLaunch, flow);
  header.aux = ask ? 1 : 0;
  std::string text = flow.launched ? "" : call->description.substr(0, kMaxText);
  flow.launched = true;
  flow.asked = flow.asked || ask;
  core.Send(flow.peer, header, std::move(text));
}

void ExchangeCore::Send(uint32_t peer, const Header& header, std::string text) {
  if (peer == rank_ || !peers_[peer]->lost.ok()) return;
  outbox(peer).Control(header, std::move(text));
  mesh_->Kick(peer);
}

void ExchangeCore::Queue(Outbound& out) {
  Mix(out.message->traffic);
  outbox(out.flow->peer).Queue(out);
  if (out.queued) mesh_->Kick(out.flow->peer);
}

void ExchangeCore::Mix(TrafficClass traffic) {
  if (traffic == TrafficClass::kControl) return;
  const Deadline now = Clock::now();
  (traffic >= TrafficClass::kGradient ? bulky_at_ : hurried_at_) = now;
  if (mix_timer_ == 0 && now < std::min(bulky_at_, hurried_at_) + kMixed) LookAtMix();
}

void ExchangeCore::LookAtMix() {
  mix_timer_ = 0;
  const bool mixed = Clock::now() < std::min(bulky_at_, hurried_at_) + kMixed;
  for (uint32_t peer = 0; peer < peers_.size(); ++peer) {
    if (peer != rank_) outbox(peer).Limit(mesh_->KeepShort(peer, mixed) ? kShortSegment : kMaxPayload);
  }
  if (mixed) mix_timer_ = loop().CallAt(Clock::now() + kMixInterval, [this] { LookAtMix(); });
}

void ExchangeCore::Withdraw(Outbound& out) {
  if (outbox(out.flow->peer).Remove(out)) mesh_->Keep(out.flow->peer);
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
