// Places of receives that peers write to by themselves (docs/decisions/0033-offers.md): offered while the call runs,
// withdrawn if it ends early. Its memory is the caller's again when every peer has said that it writes no more, or its
// link is closed.
#include <chrono>
#include <utility>

#include "collectives/exchange/exchange_core.h"

namespace byteps_like {
namespace {

constexpr uint64_t kLeastOffer = 64u << 10;  // shorter messages cost less to copy than to offer
// How long a peer may take to say that it writes no more: it does so on its loop, whatever its callers do.
constexpr auto kPatience = std::chrono::seconds(2);

CallId CallOf(const OfferId& what) { return {what.key, static_cast<uint32_t>(what.which >> 32)}; }

}  // namespace

bool ExchangeCore::TakesOffers(uint32_t peer, uint64_t length) {
  return length >= kLeastOffer && peer < peers_.size() && mesh_->TakesOffers(peer);
}

void ExchangeCore::Offer(ReceiveMessage& message, std::byte* place) {
  if (message.hook == nullptr) return;
  auto& in = static_cast<Inbound&>(*message.hook);
  if (in.arrived_whole()) return;
  Header about = outbox(in.peer).HeaderOf(FrameType::kData, FlowOf(*in.record, in.peer));
  about.root = in.tag;
  in.offered = mesh_->Offer(in.peer, about, place, message.length);
}

// True: no peer writes for the call any more. An offer ends when all of its bytes have arrived.
bool ExchangeCore::WithdrawAll(CallRecord& record, const Status& why) {
  Withdrawing over{record.call, why, {}, 0};
  for (const auto& [key, in] : record.inbound) {
    if (!in.offered || in.arrived_whole()) continue;
    const OfferId what{FrameType::kData, record.id.lane, (uint64_t{record.id.call} << 32) | in.tag};
    if (mesh_->Withdraw(in.peer, what)) over.places.emplace(in.peer, in.tag);
  }
  if (over.places.empty()) return true;
  over.timer = loop().CallAt(Clock::now() + kPatience, [this, id = record.id] {
    CutWriters(id, "it has not said in time that it writes no more into memory of a call that is over");
    SettleIfDone(id);
  });
  withdrawing_.emplace(record.id, std::move(over));
  return false;
}

void ExchangeCore::OnWithdrawn(WayTo from, const OfferId& what) {
  const CallId id = CallOf(what);
  const auto found = withdrawing_.find(id);
  if (found == withdrawing_.end()) return;
  found->second.places.erase({from.peer, static_cast<uint32_t>(what.which)});
  SettleIfDone(id);
}

void ExchangeCore::SettleIfDone(CallId id) {
  const auto found = withdrawing_.find(id);
  if (found == withdrawing_.end() || !found->second.places.empty()) return;
  const Withdrawing over = std::move(found->second);
  withdrawing_.erase(found);
  loop().CancelTimer(over.timer);
  over.call->OnFailed(over.why);
}

void ExchangeCore::OnLinkGone(WayTo from) {
  if (from.way != Way::kMain) return;
  std::vector<CallId> touched;
  for (auto& [id, over] : withdrawing_) {
    if (std::erase_if(over.places, [&](const auto& place) { return place.first == from.peer; }) > 0)
      touched.push_back(id);
  }
  for (const CallId& id : touched) SettleIfDone(id);
}

// Once a link is closed nothing is written any more.
void ExchangeCore::CutWriters(CallId id, const char* why) {
  const auto found = withdrawing_.find(id);
  if (found == withdrawing_.end()) return;
  for (const auto& [peer, tag] : std::exchange(found->second.places, {})) {
    mesh_->Cut(peer, Status(Code::kPeerLost, why));
  }
}

void ExchangeCore::Sever(Call& call) {
  const CallId id = OnWire(call.id);
  const auto found = withdrawing_.find(id);
  if (found == withdrawing_.end() || found->second.call != &call) return;
  CutWriters(id, "the communicator was closed while it wrote into memory of a call");
  loop().CancelTimer(found->second.timer);
  withdrawing_.erase(found);
}

}  // namespace byteps_like
