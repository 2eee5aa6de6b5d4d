// What the exchange sends.
#include <utility>

#include "collectives/exchange_core.h"

namespace byteps_like {

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
  outbox(out.flow->peer).Queue(out);
  if (out.queued) mesh_->Kick(out.flow->peer);
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
