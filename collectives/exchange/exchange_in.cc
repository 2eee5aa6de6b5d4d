// The receiving side of the exchange.
#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/exchange/exchange_core.h"

namespace byteps_like {
namespace {

// Credit is given back in portions: a frame for each message would double the frames of small calls.
constexpr uint64_t kCreditPortion = kEagerBytes / 8;

CallId IdIn(const Header& header) { return {header.key, header.round}; }

std::string LengthsText(const std::string& who, uint64_t sent, uint64_t expected) {
  return who + " sends " + std::to_string(sent) + " bytes where " + std::to_string(expected) + " are expected";
}

}  // namespace

void ExchangeCore::Violation(uint32_t peer, const std::string& what) {
  mesh_->Cut(peer, Status(Code::kCorrupt, "it broke the protocol: " + what));
}

void ExchangeCore::ReturnCredit(WayTo from, uint64_t bytes) {
  Port& end = port(from);
  end.owed += bytes;
  if (end.owed < kCreditPortion) return;
  end.held -= end.owed;
  Header header;
  header.type = FrameType::kCredit;
  header.offset = std::exchange(end.owed, 0);
  Send(from, header);
}

// Frames --------------------------------------------------------------------------------------------------------------

std::byte* ExchangeCore::PlaceFor(WayTo from, const Header& header) {
  if (header.type == FrameType::kData) return PlaceForData(from, header);
  if (header.type != FrameType::kLaunch && header.type != FrameType::kAbort) return nullptr;
  return kAnywhere;  // a text
}

std::byte* ExchangeCore::PlaceForData(WayTo from, const Header& header) {
  Port& end = port(from);
  end.landing = {};
  end.landing.block.eager = IsEager(header);
  if (IsEager(header)) {
    end.held += header.length;
    if (end.held > kEagerBytes) {
      Violation(from.peer,
                "more than " + std::to_string(kEagerBytes) + " bytes for calls that this rank has not begun");
      return kAnywhere;
    }
  }
  if ((header.key & kPointLane) != 0) {
    return points_ != nullptr ? points_->PlaceFor(from, header) : kAnywhere;
  }
  Inbound* const in = from.way == Way::kMain ? Incoming(from.peer, header) : nullptr;
  if (in == nullptr) return kAnywhere;
  end.landing.in = in;
  if (in->message != nullptr && in->stash.empty()) {
    std::byte* const place = in->record->call->PlaceFor(*in->message, header.offset, header.length);
    end.landing.direct = place != nullptr;
    if (place != nullptr) return place;
  }
  end.landing.block.bytes = std::make_unique_for_overwrite<std::byte[]>(header.length);
  end.landing.block.length = header.length;
  return end.landing.block.bytes.get();
}

void ExchangeCore::OnFrame(WayTo from, const Header& header, std::byte* payload) {
  const uint32_t peer = from.peer;
  Hear(from, header);
  if (header.type == FrameType::kHurry) return;
  const auto text = [&] { return std::string(reinterpret_cast<const char*>(payload), header.length); };
  if (header.type == FrameType::kCredit) return outbox(from).Credit(header.offset), mesh_->Kick(from);
  if ((header.key & kPointLane) != 0) {
    if (points_ != nullptr) points_->OnFrame(from, header, payload);
    return;
  }
  if (from.way != Way::kMain)
    return Violation(peer, "a collective's frame on the connection for point-to-point messages");
  switch (header.type) {
    case FrameType::kData:
      return OnData(peer, header, payload);
    case FrameType::kLaunch:
      return OnLaunch(peer, header, text());
    case FrameType::kClear:
      return OnClear(peer, header);
    case FrameType::kAbort:
      return OnAbort(peer, header, text());
    default:
      return Violation(peer, "a frame of type " + std::to_string(static_cast<int>(header.type)));
  }
}

bool ExchangeCore::Charge(uint32_t peer, size_t bytes) {
  size_t& remembered = peers_[peer]->remembered;
  if (remembered + bytes > kMostRemembered) {
    Violation(peer,
              "more than " + std::to_string(kMostRemembered >> 20) + " MiB of data that no receive has asked for");
    return false;
  }
  remembered += bytes;
  return true;
}

bool ExchangeCore::Charge(Flow& flow, size_t bytes) {
  if (!Charge(flow.to.peer, bytes)) return false;
  flow.charged += bytes;
  return true;
}

// The record of a call that a peer speaks of: at its expense, unless the call has begun here.
CallRecord* ExchangeCore::HeardOf(uint32_t peer, const CallId& id, Flow*& flow) {
  CallRecord* const known = Find(id);
  flow = known == nullptr ? nullptr : FindFlow(*known, peer);
  if (flow != nullptr) return known;
  const bool free = known != nullptr && known->call != nullptr;
  if (!free && !Charge(peer, kRecordBytes)) return nullptr;
  CallRecord* const record = FindOrMake(id);
  if (record == nullptr) return Refund(peer, kRecordBytes), nullptr;
  flow = &FlowOf(*record, peer);
  flow->charged = free ? 0 : kRecordBytes;
  return record;
}

// The message that a frame of data belongs to; nullptr if it is no longer wanted.
Inbound* ExchangeCore::Incoming(uint32_t peer, const Header& header) {
  Flow* flow = nullptr;
  CallRecord* const record = HeardOf(peer, IdIn(header), flow);
  if (record == nullptr || !record->failed.ok()) return nullptr;
  Heard(*flow);
  const auto [at, added] = record->inbound.try_emplace(InboundKey(peer, header.root));
  Inbound& in = at->second;
  if (added) {
    in.record = record;
    in.peer = peer;
    in.tag = header.root;
    if (!Charge(*flow, kInboundBytes)) return record->inbound.erase(at), nullptr;
    in.flow = flow;
  }
  return Fits(peer, in, header) ? &in : nullptr;
}

bool ExchangeCore::Fits(uint32_t peer, Inbound& in, const Header& header) {
  const uint64_t length = MessageLength(header);
  CallRecord& record = *in.record;
  if (record.call == nullptr && !IsEager(header)) {
    Violation(peer, "data for a call that this rank has not begun");
    return false;
  }
  if (in.length_known && length != in.length) {
    const std::string where = record.call == nullptr ? "" : ", in: " + record.call->description;
    FailLater(record, Status(Code::kMismatch, LengthsText(NameOf(peer), length, in.length) + where), true);
    return false;
  }
  in.length = length;
  in.length_known = true;
  if (header.offset != in.arrived || header.offset + header.length > length || in.arrived_whole()) {
    Violation(peer, "bytes of a message out of order");
    return false;
  }
  in.begun = true;
  return true;
}

void ExchangeCore::OnData(uint32_t peer, const Header& header, std::byte* payload) {
  Landing landing = std::exchange(port(peer).landing, {});
  if (header.length == 0) {
    landing = {};
    landing.in = Incoming(peer, header);
    landing.direct = landing.in != nullptr && landing.in->message != nullptr;
  }
  Inbound* const in = landing.in;
  if (in == nullptr) {
    if (IsEager(header)) ReturnCredit(peer, header.length);
    return;
  }
  in->arrived += header.length;
  if (!landing.direct) return Stash(*in, std::move(landing.block));
  if (IsEager(header)) ReturnCredit(peer, header.length);
  Take(*in, payload, header.length);
}

// Bytes reach the call. Last: the call may end in it.
void ExchangeCore::Take(Inbound& in, const std::byte* bytes, uint32_t length) {
  ReceiveMessage& message = *in.message;
  Call& call = *in.record->call;
  const uint64_t offset = message.received;
  message.received += length;
  if (message.received == message.length) EraseInbound(in);
  call.OnBytes(message, offset, bytes, length);
}

void ExchangeCore::EraseInbound(Inbound& in) {
  if (delivering_ == &in) delivering_ = nullptr;
  if (in.scheduled) std::replace(scheduled_.begin(), scheduled_.end(), &in, static_cast<Inbound*>(nullptr));
  if (in.message != nullptr) in.message->hook = nullptr;
  Landing& landing = port(in.peer).landing;
  if (landing.in == &in) {
    mesh_->Redirect(in.peer, kAnywhere);
    landing.in = nullptr;
  }
  for (const Block& block : in.stash) {
    if (block.eager) ReturnCredit(in.peer, block.length);
  }
  if (in.flow != nullptr) {
    in.flow->charged -= kInboundBytes;
    Refund(in.peer, kInboundBytes);
  }
  in.record->inbound.erase(InboundKey(in.peer, in.tag));
}

// The stash -----------------------------------------------------------------------------------------------------------

void ExchangeCore::Stash(Inbound& in, Block block) {
  CallRecord& record = *in.record;
  if (in.message == nullptr && !block.eager) {
    record.unposted += block.length;
    if (record.unposted > kEagerBytes) {
      return FailLater(record,
                       Status(Code::kMismatch,
                              NameOf(in.peer) + " sends a message that is not part of: " + record.call->description),
                       true);
    }
  }
  in.stash.push_back(std::move(block));
  // The call refused these bytes before they had all come, or was not posted then; since then it may want them.
  if (in.message != nullptr) Schedule(in);
}

void ExchangeCore::Schedule(Inbound& in) {
  if (std::exchange(in.scheduled, true)) return;
  scheduled_.push_back(&in);
  loop().Defer(*this);
}

void ExchangeCore::Deliver(Inbound& in) {
  delivering_ = &in;
  while (delivering_ == &in && in.message != nullptr && !in.stash.empty() && in.record->failed.ok()) {
    const uint32_t length = in.stash.front().length;
    std::byte* place = nullptr;
    if (length > 0) {
      place = in.record->call->PlaceFor(*in.message, in.message->received, length);
      if (place == nullptr) break;
    }
    const Block block = std::move(in.stash.front());
    in.stash.pop_front();
    if (place == kAnywhere) {
      place = block.bytes.get();
    } else if (length > 0) {
      std::memcpy(place, block.bytes.get(), length);
    }
    if (block.eager) ReturnCredit(in.peer, length);
    Take(in, place, length);
  }
  delivering_ = nullptr;
}

void ExchangeCore::RunDeferred() {
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    Inbound* const in = scheduled_[i];
    if (in == nullptr) continue;
    scheduled_[i] = nullptr;
    in->scheduled = false;
    Deliver(*in);
  }
  scheduled_.clear();
  while (!failures_.empty()) {
    const CallId id = failures_.back();
    failures_.pop_back();
    FailNow(id);
  }
}

// Notices of peers about calls ----------------------------------------------------------------------------------------

// The peer has begun the call, and posts its receives when it begins, so what we send for it finds its place.
void ExchangeCore::Heard(Flow& flow) {
  flow.heard = true;
  flow.probed = false;
  if (flow.cleared) return;
  outbox(flow.to).Cleared(flow);
  mesh_->Kick(flow.to);
}

void ExchangeCore::OnLaunch(uint32_t peer, const Header& header, std::string text) {
  Flow* heard = nullptr;
  CallRecord* const record = HeardOf(peer, IdIn(header), heard);
  if (record == nullptr && header.aux == 1) {  // it is over here, and the peer wants to know whether we live
    Flow over;
    over.id = IdIn(header);
    return Answer(peer, outbox(peer).HeaderOf(FrameType::kClear, over));
  }
  if (record == nullptr || !record->failed.ok()) return;
  Flow& flow = *heard;
  Heard(flow);
  if (text.size() > kMostDescription) return Violation(peer, "a description of more than 512 bytes");
  if (!text.empty() && !flow.described) {
    if (!Charge(flow, text.size())) return;
    peers_[peer]->last = text;
    flow.description = std::move(text);
    flow.described = true;
    if (record->call != nullptr && !record->call->description.empty() &&
        record->call->description != flow.description) {
      return FailLater(*record, Status(Code::kMismatch, Differ(*record, flow)), true);
    }
  }
  if (header.aux != 1) return;
  flow.wants_clear = record->call == nullptr;
  if (!flow.wants_clear) Answer(peer, outbox(peer).HeaderOf(FrameType::kClear, flow));
}

void ExchangeCore::OnClear(uint32_t peer, const Header& header) {
  CallRecord* const record = Find(IdIn(header));
  Flow* const flow = record == nullptr ? nullptr : FindFlow(*record, peer);
  if (flow != nullptr) Heard(*flow);
}

void ExchangeCore::OnAbort(uint32_t peer, const Header& header, std::string text) {
  if (text.size() > kMostAbortText) return Violation(peer, "a reason of more than 8 KiB");
  Flow* flow = nullptr;
  CallRecord* const record = HeardOf(peer, IdIn(header), flow);
  const bool kept = record != nullptr && record->failed.ok();
  if (kept && !Charge(*flow, text.size())) return;
  if (text.empty()) text = NameOf(peer) + " failed the call without a reason";
  const Status why(CodeFrom(header.aux), std::move(text));
  if (record != nullptr) FailLater(*record, why, false);
  const bool known = record != nullptr || lanes_.contains(header.key);
  if (!known || why.code() != Code::kPeerLost || broken_.contains(header.key)) return;
  if (Charge(peer, kRecordBytes + why.message().size()))
    BreakLane(IdIn(header), why);  // for as long as the world lives
}

}  // namespace byteps_like
