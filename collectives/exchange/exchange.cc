#include "collectives/exchange/exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "collectives/exchange/exchange_core.h"
#include "collectives/host/host_side.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(200);

// Shortens a description that is too long to be sent: it keeps its beginning, and gets a number that tells it apart
// from others that begin alike.
void Shorten(std::string& description) {
  if (description.size() <= kMostDescription) return;
  const std::string mark = "... #" + std::to_string(kernels::Crc32c(0, description.data(), description.size()));
  description.replace(kMostDescription - mark.size(), std::string::npos, mark);
}

}  // namespace

ExchangeCore::~ExchangeCore() = default;

void ExchangeCore::Prepare(const MeshWorld& world) {
  if (!peers_.empty()) return;
  rank_ = world.rank;
  for (uint32_t peer = 0; peer < world.peers.size(); ++peer) {
    peers_.push_back(std::make_unique<Peer>(world.number(), world.epoch));
  }
}

std::string ExchangeCore::NameOf(uint32_t peer) const {
  const std::string& name = mesh_->world().peers[peer].name;
  return name.empty() ? "rank " + std::to_string(peer) : name;
}

// Records -------------------------------------------------------------------------------------------------------------

CallRecord* ExchangeCore::Find(const CallId& id) {
  const auto found = calls_.find(id);
  return found == calls_.end() ? nullptr : found->second.get();
}

CallRecord* ExchangeCore::FindOrMake(const CallId& id) {
  if (CallRecord* const record = Find(id)) return record;
  const auto lane = lanes_.find(id.lane);
  if (lane != lanes_.end() && lane->second.Over(id.call)) return nullptr;
  auto record = std::make_unique<CallRecord>(*this);
  record->id = id;
  return calls_.emplace(id, std::move(record)).first->second.get();
}

Flow* ExchangeCore::FindFlow(CallRecord& record, uint32_t peer) {
  for (const auto& flow : record.flows) {
    if (flow->to.peer == peer) return flow.get();
  }
  return nullptr;
}

Flow& ExchangeCore::FlowOf(CallRecord& record, uint32_t peer) {
  if (Flow* const flow = FindFlow(record, peer)) return *flow;
  record.flows.push_back(std::make_unique<Flow>());
  Flow& flow = *record.flows.back();
  flow.to = peer;
  flow.id = record.id;
  return flow;
}

// Calls ---------------------------------------------------------------------------------------------------------------

Status ExchangeCore::Begin(Call& call) {
  if (!failed_.ok()) return failed_;
  const CallId id = OnWire(call.id);
  CallRecord* const record = FindOrMake(id);
  if (record == nullptr || record->call != nullptr) {
    return Status(Code::kInvalid, "call " + std::to_string(id.call) + " of this group was begun before");
  }
  Status refused = record->failed;
  if (const auto broken = broken_.find(id.lane); refused.ok() && broken != broken_.end()) {
    if (id.call > broken->second.call) refused = broken->second.why;
  }
  bool tell = false;
  for (const uint32_t peer : call.ranks) {
    if (!refused.ok()) break;
    if (peer >= peers_.size())
      refused = Status(Code::kInvalid, "rank " + std::to_string(peer) + " is not in the world");
    else if (!peers_[peer]->lost.ok() && !peers_[peer]->left)
      refused = LossOf(peer);
    tell = !refused.ok();
  }
  record->call = &call;
  ++begun_;
  Shorten(call.description);
  for (const auto& flow : record->flows) {
    if (!refused.ok() || !flow->described || call.description.empty()) continue;
    if (flow->description == call.description) continue;
    refused = Status(Code::kMismatch, Differ(*record, *flow));
    tell = true;
  }
  if (!refused.ok()) {
    if (tell) Flood(call, refused);
    Close(*record, refused);
    return refused;
  }
  for (const auto& flow : record->flows) {
    if (std::exchange(flow->wants_clear, false)) {
      Send(flow->to, outbox(flow->to).HeaderOf(FrameType::kClear, *flow));
    }
  }
  LookLater();
  return {};
}

void ExchangeCore::Post(Call& call, SendMessage& message) {
  CallRecord* const record = Find(OnWire(call.id));
  message.hook = nullptr;
  if (record == nullptr || !record->failed.ok()) return;
  if (message.peer == rank_ || message.peer >= peers_.size()) {
    return FailLater(*record, Status(Code::kInvalid, "a message to rank " + std::to_string(message.peer)), true);
  }
  if (!peers_[message.peer]->lost.ok()) return FailLater(*record, LossOf(message.peer), true);
  auto out = std::make_unique<Outbound>();
  out->message = &message;
  out->owner = record;
  out->flow = &FlowOf(*record, message.peer);
  out->slot = record->outbound.size();
  message.hook = out.get();
  message.sent = 0;
  record->outbound.push_back(std::move(out));
  Outbound& posted = *record->outbound.back();
  const bool ask = !posted.flow->cleared && message.length > kEagerMessage && !posted.flow->asked;
  if (!posted.flow->launched || ask) record->Launch(*posted.flow, ask);
  Queue(posted);
}

void ExchangeCore::Advance(SendMessage& message) {
  if (message.hook != nullptr) Queue(static_cast<Outbound&>(*message.hook));
}

void ExchangeCore::Post(Call& call, ReceiveMessage& message) {
  CallRecord* const record = Find(OnWire(call.id));
  message.hook = nullptr;
  if (record == nullptr || !record->failed.ok()) return;
  if (message.peer == rank_ || message.peer >= peers_.size()) {
    return FailLater(*record, Status(Code::kInvalid, "a message from rank " + std::to_string(message.peer)), true);
  }
  Inbound& in = record->inbound[InboundKey(message.peer, message.tag)];
  in.record = record;
  in.peer = message.peer;
  in.tag = message.tag;
  in.message = &message;
  message.hook = &in;
  message.received = 0;
  if (in.length_known && in.length != message.length) {
    return FailLater(
        *record,
        Status(Code::kMismatch, NameOf(in.peer) + " sends " + std::to_string(in.length) + " bytes where " +
                                    std::to_string(message.length) + " are expected, in: " + call.description),
        true);
  }
  in.length = message.length;
  in.length_known = true;
  if (!peers_[message.peer]->lost.ok() && !in.arrived_whole()) return FailLater(*record, LossOf(message.peer), true);
  if (!in.stash.empty()) Schedule(in);
}

void ExchangeCore::Retry(ReceiveMessage& message) {
  if (message.hook == nullptr) return;
  auto& in = static_cast<Inbound&>(*message.hook);
  if (!in.stash.empty()) Schedule(in);
}

void ExchangeCore::End(Call& call) {
  if (CallRecord* const record = Find(OnWire(call.id)); record != nullptr && record->call == &call) Close(*record, {});
}

bool ExchangeCore::Abort(Call& call, const Status& why) {
  const CallId id = OnWire(call.id);
  CallRecord* const record = Find(id);
  if (record == nullptr || record->call != &call) return !withdrawing_.contains(id);
  Flood(call, why);
  return Close(*record, why);
}

std::string ExchangeCore::Silent(const Call& call) {
  CallRecord* const record = Find(OnWire(call.id));
  std::string text;
  if (record == nullptr) return text;
  for (const auto& [key, in] : record->inbound) {
    if (in.message == nullptr || in.arrived_whole()) continue;
    const Flow* const flow = FindFlow(*record, in.peer);
    if (flow != nullptr && flow->heard) continue;
    if (text.find(NameOf(in.peer) + " has") != std::string::npos) continue;
    const std::string& last = peers_[in.peer]->last;
    text += (text.empty() ? "" : "; ") + NameOf(in.peer) + " has not begun this call" +
            (last.empty() ? "" : " (last heard of in: " + last + ")");
  }
  for (const auto& flow : record->flows) {
    if (!flow->probed || text.find(NameOf(flow->to.peer) + " has") != std::string::npos) continue;
    text += (text.empty() ? "" : "; ") + NameOf(flow->to.peer) + " has not answered" +
            (flow->heard ? " since its last message" : "");
  }
  return text;
}

// Any frame of the call will do: it tells the peers that wait for this rank, which is waiting itself, that it is alive.
void ExchangeCore::Probe(Call& call) {
  CallRecord* const record = Find(OnWire(call.id));
  if (record == nullptr || record->call != &call || !record->failed.ok()) return;
  for (const uint32_t peer : call.ranks) {
    if (peer == rank_ || peer >= peers_.size() || !peers_[peer]->lost.ok()) continue;
    Flow& flow = FlowOf(*record, peer);
    flow.probed = true;
    record->Launch(flow, true);
  }
}

// Peers that have gone without a word to us: a message that is awaited needs a link that could break.
void ExchangeCore::LookLater() {
  if (look_timer_ != 0 || begun_ == 0) return;
  look_timer_ = loop().CallAt(Clock::now() + kLookInterval, [this] {
    look_timer_ = 0;
    Look();
    LookLater();
  });
}

void ExchangeCore::Look() {
  for (const auto& [id, record] : calls_) {
    if (record->call == nullptr) continue;
    for (const auto& [key, in] : record->inbound) {
      if (in.message != nullptr && !in.begun) mesh_->Kick(in.peer);
    }
  }
}

void ExchangeCore::OnRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) {
  if (host_ == nullptr) return;
  host_->OnRegion(peer, id, std::move(buffer));
  ChargeRegions(peer);
}

void ExchangeCore::OnNoRegion(uint32_t peer, uint32_t id, bool refused) {
  if (host_ == nullptr) return;
  host_->OnNoRegion(peer, id, refused);
  ChargeRegions(peer);
}

void ExchangeCore::ChargeRegions(uint32_t peer) {
  const size_t bytes = host_->RegionsOf(peer) * kRegionBytes;
  size_t& charged = peers_[peer]->regions;
  if (bytes > charged && !Charge(peer, bytes - charged)) return;
  if (bytes < charged) Refund(peer, charged - bytes);
  charged = bytes;
}

}  // namespace byteps_like
