// The data path of a channel: contributions out, results in.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "csrc/base/log.h"
#include "csrc/codec/payload.h"
#include "csrc/engine/channel.h"
#include "csrc/engine/coding/coding.h"
#include "csrc/engine/staging/staging.h"

namespace byteps_like {
namespace {

constexpr size_t kSegmentsPerPart = 8;  // at least, unless they would become too small
constexpr size_t kLeadOfCredit = 2;     // all links together may be ahead of the last by credit over this
constexpr size_t kSegmentUnit = 4 << 10;
constexpr int64_t kPayloadsAhead = 2;  // beyond the credit: an encoded round is answered when it is whole

// How many bytes of a contribution its result has answered. In encoded rounds the two differ in length.
int64_t Returned(const Part& part) {
  if (!part.encoded) return part.landed;
  return part.expected == 0 ? 0 : int64_t{part.landed} * part.total / part.expected;
}

// The least that the server must have counted, judged by the result that has landed. A merged round is answered as soon
// as the indexes are in, any other encoded round when it is complete.
uint32_t CountedAtLeast(const Part& part) {
  if (part.landed == 0 || !part.encoded) return part.landed;
  return part.coding->merges() ? kPayloadHeader + 1 : part.total;
}

// Of the part of its contribution that is there.
uint32_t Unsent(const Part& part) {
  const uint32_t there = part.total - part.pending;
  return there > part.sent ? there - part.sent : 0;
}

// Otherwise a rank would take its own contribution for the result.
bool IsMisplaced(const Part& part, const Header& header) {
  return header.type == FrameType::kResult && part.absent != ((header.flags & kAbsent) != 0);
}

}  // namespace

// Out -----------------------------------------------------------------------------------------------------------------

void Channel::Enqueue(Part& part) {
  if (context_.options.outlives_servers && !part.absent && !part.held)
    part.held = std::make_unique<HeldResult>(std::max<size_t>(part.bytes, PlaceOf(part).bytes));
  Enter(part);
  const bool told = part.absent || (part.coding != nullptr && (part.coding->active || part.coding->on_gpu)) ||
                    (part.staging != nullptr && part.staging->active);
  if (Tracing() && !told) TraceReady(part);
  const Operation* const operation = OperationOf(part);
  if (operation != nullptr && !operation->given_up.ok()) return Finish(part, operation->given_up);
  if (part.adoption == AdoptionStage::kTaking) return AskForResult(part);
  if (part.adoption == AdoptionStage::kAsked) return AskToAdopt(part, true);
  Queue(part);
}

void Channel::Enter(Part& part) {
  parts_.emplace(part.key, &part);
  part.sent = part.landed = 0;
  part.expected = part.encoded ? 0 : part.total;
  part.begun = part.resuming = part.streamed = false;
  part.slot = in_flight_.size();
  if (!busy()) Heard();
  in_flight_.push_back(&part);
}

const Operation* Channel::OperationOf(const Part& part) {
  const Part& payload = part.operation == nullptr && part.coding != nullptr ? *part.coding->part : part;
  return payload.operation.get();
}

void Channel::Queue(Part& part) {
  if (part.queued) return;
  part.queued = true;
  ++part.waiting;
  queue_.push({part.priority, part.order, &part});
  Announce();
  if (link_) link_->Kick();
}

// After a new link: bytes sent over the old one may or may not have been counted.
void Channel::Resume(Part& part) {
  if (!part.begun) return;
  if (part.adoption == AdoptionStage::kTaking) return AskForResult(part);
  if (!part.streamed) {  // by reference, or absent: saying it again does no harm
    part.sent = 0;
    return Queue(part);
  }
  part.resuming = true;
  OfferLanding(part);
  Header header = HeaderFor(part, FrameType::kResume);
  header.offset = part.landed;
  control_.push_back(header);
}

// For links whose peer can write there by itself. Offered before the first PUSH of a round, and over a new link before
// RESUME: at these moments the server has nothing to send for this key, so it learns of the place in time.
//
// Often the contribution lies in the same memory. A result is written there only for a range that all ranks have
// contributed, so the server has counted ours. It is therefore not sent again over this link (a device that repeats
// what was received learns that it was), and not asked for over the next one, however much of a result lies there
// unseen when a link breaks.
void Channel::OfferLanding(const Part& part) {
  const PooledBuffer place = LandingOf(part);
  link_->Offer(HeaderFor(part, FrameType::kResult), place.data, place.bytes);
}

Header Channel::HeaderFor(const Part& part, FrameType type) const {
  Header header;
  header.type = type;
  header.dtype = part.dtype;
  header.op = part.op;
  header.view = context_.options.credentials.view;
  header.member = context_.options.member;
  header.key = part.key;
  header.round = part.round;
  header.priority = part.priority;
  header.total = part.total;
  header.root = part.root;
  if (type == FrameType::kPush && part.movable) header.flags = kMovable;
  if (part.encoded && type != FrameType::kForget) {
    header.flags |= kEncoded;
    header.aux = part.coding->number;
  } else if (type == FrameType::kPush) {
    header.aux = part.absentees;
  }
  return header;
}

bool Channel::NextFrame(Link& link, Outgoing& next) {
  if (&link != link_.get()) return false;
  return NextControl(next) || NextGift(next) || NextData(next);
}

// What others lack goes before a goodbye.
bool Channel::NextControl(Outgoing& next) {
  if (control_.empty()) return false;
  const Header& first = control_.front();
  if (first.type == FrameType::kGoodbye && NextGift(next)) return true;
  if ((first.flags & kEncoded) != 0 && NameCodec(first.aux, next)) return true;
  next.header = first;
  control_.pop_front();
  return true;
}

// Rounds go first among equals: all ranks wait for them.
bool Channel::NextData(Outgoing& next) {
  const auto kept = ending_ ? std::nullopt : kept_.NextPriority();
  const Part* const part = Next();
  if (part != nullptr && (!kept || part->priority >= *kept) && NextPush(next)) return true;
  if (!kept) return false;
  kept_.Next(link_->Filling(context_.segment_bytes), next);
  return true;
}

// Before the first frame of this link that speaks of the codec.
bool Channel::NameCodec(uint32_t number, Outgoing& next) {
  if (!named_codecs_.insert(number).second) return false;
  const std::string& text = owner_.CodecText(number);
  next.header = {};
  next.header.type = FrameType::kCodec;
  next.header.view = context_.options.credentials.view;
  next.header.member = context_.options.member;
  next.header.aux = number;
  next.header.length = static_cast<uint32_t>(text.size());
  next.payload = reinterpret_cast<const std::byte*>(text.data());
  return true;
}

// Before the first push of this link, to an aggregator: where its sum goes.
bool Channel::NameOwner(Part& part, Outgoing& next) {
  if (part.owner.none() || part.told_owner) return false;
  part.told_owner = true;
  next.header = HeaderFor(part, FrameType::kOwner);
  next.header.total = 0;
  next.header.root = part.owner.server;
  next.header.aux = part.owner.shard;
  return true;
}

// Credit keeps the links of one worker, and the workers of one job, in step: one that is this far ahead waits, and
// leaves the wire to the bytes that the others are waiting for.
bool Channel::HasCredit(const Part& part) {
  if ((part.key & kPreludeKey) != 0) return true;  // small, and others wait for it to say anything at all
  const int64_t payloads = part.encoded ? kPayloadsAhead * int64_t{part.total} : 0;
  const int64_t credit = static_cast<int64_t>(context_.credit_bytes.load()) + lent_ + payloads;
  if (ahead_ < credit || AheadFrom(part.priority) < credit) return true;
  if (!lending_armed_) {
    lending_armed_ = true;
    context_.loop.CallAt(Clock::now() + context_.options.lend_after, [this] { LendCredit(); });
  }
  return false;
}

// Less urgent partitions don't count. One of them may be half sent while others have not begun it because they are
// already at this one; if it counted, they would wait for us and we for them.
int64_t Channel::AheadFrom(int32_t priority) const {
  int64_t ahead = 0;
  for (const Part* const part : in_flight_)
    if (part->streamed && part->priority >= priority && part->brings) ahead += part->sent - Returned(*part);
  return ahead;
}

// Ranks that push in different orders would wait for each other for ever: when nothing comes, credit is given.
void Channel::LendCredit() {
  lending_armed_ = false;
  if (queue_.empty()) return;
  if (Clock::now() - last_landing_ >= context_.options.lend_after) lent_ = std::max(2 * lent_, ahead_);
  if (link_) link_->Kick();
}

// Small partitions are cut as well: the server answers with the first segments while the others are on their way. It
// answers in segments of the same length.
size_t Channel::SegmentOf(const Part& part) const {
  const size_t least = context_.options.least_segment, unit = std::min(least, kSegmentUnit);
  const size_t even = part.total / kSegmentsPerPart / unit * unit;
  return link_->Filling(std::min(context_.segment_bytes.load(), std::max(even, least)));
}

Part* Channel::Next() {
  while (!queue_.empty() && (!queue_.top().part->queued || queue_.top().part->resuming)) {
    Dequeue();
  }
  return queue_.empty() ? nullptr : queue_.top().part;
}

void Channel::Dequeue() {
  Part& first = *queue_.top().part;
  first.queued = false;
  --first.waiting;
  queue_.pop();
}

// Shared memory takes nothing from the card that the others share.
void Channel::Announce() {
  const Part* const next = link_ && !link_->shares_memory() ? Next() : nullptr;
  if (next != nullptr) return context_.in_step.Wants(index_, next->priority);
  held_ = false;
  context_.in_step.Rests(index_);
  owner_.LetGo();
}

bool Channel::IsInStep() {
  if (link_->shares_memory()) return true;
  held_ = !context_.in_step.MayGo(index_, static_cast<int64_t>(context_.credit_bytes / kLeadOfCredit));
  return !held_;
}

void Channel::LetGo() {
  if (IsInStep()) link_->Kick();
}

bool Channel::NextPush(Outgoing& next) {
  Part* const first = Next();
  if (first == nullptr) return false;
  if (NameOwner(*first, next)) return true;
  if (Excuse(*first, next)) return true;
  if (const Way way = ByReference(*first, next); way != Way::kStreamed) return way == Way::kReferred;
  return NextSegment(*first, next);
}

bool Channel::NextSegment(Part& part, Outgoing& next) {
  if (!HasCredit(part) || !IsInStep()) return false;
  if (part.encoded && NameCodec(part.coding->number, next)) return true;
  part.streamed = true;
  if (!part.begun) OfferLanding(part);
  if (Tracing()) TraceFirst(part);
  next.header = HeaderFor(part, FrameType::kPush);
  if (!part.brings) {
    part.sent = part.total;  // takes part, has nothing to say
  } else {
    next.header.offset = part.sent;
    next.header.length = static_cast<uint32_t>(std::min<size_t>(Unsent(part), SegmentOf(part)));
    next.payload = part.address + part.sent;
    part.sent += next.header.length;
    ahead_ += next.header.length;
    context_.in_step.Sent(index_, next.header.length);
  }
  part.begun = true;
  if (Unsent(part) == 0) Dequeue();
  Announce();
  owner_.LetGo();
  return true;
}

void Channel::Grown(Part& part) {
  if (!part.resuming && part.adoption == AdoptionStage::kOver && Unsent(part) > 0) Queue(part);
}

// Through memory that the server maps, where there is some.
Channel::Way Channel::ByReference(Part& part, Outgoing& next) {
  if (!MayRefer(part)) return Way::kStreamed;
  if (!Share(part, next)) return AwaitsRoom() ? Way::kWaits : Way::kStreamed;
  return Refer(part, next) ? Way::kReferred : Way::kStreamed;
}

// Whether the server may find it in memory that it maps.
bool Channel::MayRefer(const Part& part) {
  if (!link_->shares_memory() || part.streamed || part.encoded) return false;
  const SharedRegion own = RegionOf(part);
  if (own.buffer == nullptr && !owner_.bounces().Serves(part.total)) return false;
  const auto passed = shared_regions_.find(own.buffer != nullptr ? own.id : owner_.bounces().region());
  return passed == shared_regions_.end() || passed->second;
}

// Servers write results where contributions lie: if one may die over that, it gets a copy.
SharedRegion Channel::RegionOf(const Part& part) {
  if (part.held && part.bounce.memory == nullptr) return {};
  return owner_.RegionOf(SharedPlace(part), part.total);
}

std::byte* Channel::SharedPlace(const Part& part) const {
  return part.bounce.memory != nullptr ? part.bounce.data : part.address;
}

// Brings it into shared memory, unless it is there. False: there is no room at present. What is said again over a new
// link has been brought before, and may have been summed.
bool Channel::Share(Part& part, Outgoing& next) {
  if (RegionOf(part).buffer != nullptr) return true;
  part.bounce = owner_.bounces().Take(part.total);
  if (part.bounce.memory == nullptr) return false;
  lacks_room_ = false;
  if (!part.brings) return true;
  std::memcpy(part.bounce.data, part.address, part.total);
  next.copied = part.total;
  bounced_ += part.total;
  return true;
}

// Another rank may be waiting for what waits here, and we for what waits there, as with credit: after a moment it goes
// as a stream.
bool Channel::AwaitsRoom() {
  const Deadline now = Clock::now();
  if (!std::exchange(lacks_room_, true)) {
    lacking_since_ = now;
    context_.loop.CallAt(now + context_.options.lend_after, [this] { OnRoom(); });
  }
  return now - lacking_since_ < context_.options.lend_after;
}

void Channel::OnRoom() {
  if (link_) link_->Kick();
}

// After its round. If that has failed, the server may write there yet.
void Channel::LeaveBounce(Part& part, const Status& status) {
  if (part.bounce.memory == nullptr) return;
  if (status.ok()) {
    owner_.bounces().Give(part.bounce);
  } else {
    owner_.bounces().Abandon(part.bounce);
  }
  owner_.OnRoom();
}

// A contribution in memory that the server maps: says where, moves nothing.
bool Channel::Refer(Part& part, Outgoing& next) {
  const SharedRegion region = RegionOf(part);
  const auto [shared, is_new] = shared_regions_.try_emplace(region.id, true);
  if (is_new) {
    if (!link_->PassBuffer(*region.buffer).ok()) {  // out of descriptors, say: goes as a stream
      shared_regions_.erase(shared);
      return false;
    }
    next.header = RegionHeader(region.id, region.buffer->size());
    return true;
  }
  if (Tracing()) TraceFirst(part);
  next.header = HeaderFor(part, FrameType::kPush);
  next.header.flags |= kByReference;
  next.header.aux = region.id;
  next.header.offset = static_cast<uint64_t>(SharedPlace(part) - region.buffer->data());
  part.sent = part.total;
  part.begun = true;
  Dequeue();
  return true;
}

Header Channel::RegionHeader(uint32_t region, uint64_t bytes) const {
  Header header;
  header.type = FrameType::kRegion;
  header.view = context_.options.credentials.view;
  header.member = context_.options.member;
  header.aux = region;
  header.offset = bytes;
  return header;
}

// The server can't map the buffer, and has ignored all frames of this link that referred to it: their contents are sent
// again as a stream.
void Channel::OnNoRegion(uint32_t region) {
  const auto shared = shared_regions_.find(region);
  if (shared == shared_regions_.end() || !shared->second) return;
  shared->second = false;
  Log(LogLevel::kInfo, name() + " can't map memory of this worker, which is sent instead");
  for (Part* const part : in_flight_) {
    if (!part->begun || part->streamed || part->absent) continue;
    const SharedRegion lies = RegionOf(*part);
    if (lies.buffer == nullptr || lies.id != region) continue;
    part->sent = 0;
    Queue(*part);
  }
}

// Its round needs a word of this rank, and nothing else.
bool Channel::Excuse(Part& part, Outgoing& next) {
  if (!part.absent) return false;
  next.header = HeaderFor(part, FrameType::kPush);
  next.header.flags |= kAbsent;
  part.sent = part.total;
  part.begun = true;
  Dequeue();
  Announce();
  owner_.LetGo();
  return true;
}

void Channel::OnSent(Link& link, const Header& header) {
  ++counters_.frames_sent;
  counters_.payload_sent += header.length;
  if (Tracing()) TraceSent(header);
  if (header.type == FrameType::kGive && gifts_under_way_ > 0) --gifts_under_way_;
  if (header.type == FrameType::kGoodbye) link.Close(Status(Code::kClosed, ""));
}

// In ------------------------------------------------------------------------------------------------------------------

Part* Channel::Awaited(const Header& header) {
  if (header.view != context_.options.credentials.view) return nullptr;
  const auto found = parts_.find(header.key);
  if (found == parts_.end()) return nullptr;
  Part& part = *found->second;
  return part.begun && part.round == header.round ? &part : nullptr;
}

// The result of an encoded round has a size of its own, which its first frame tells.
Part* Channel::Expected(const Header& header) {
  Part* const part = Awaited(header);
  if (part == nullptr || IsMisplaced(*part, header)) return nullptr;
  if ((part->adoption == AdoptionStage::kTaking) != (header.type == FrameType::kGive)) return nullptr;
  if (part->absent && header.type == FrameType::kGive) return part;
  if (header.type == FrameType::kResumed || !part->encoded) return part->total == header.total ? part : nullptr;
  const bool fits = (header.flags & kEncoded) != 0 && header.total >= kPayloadHeader &&
                    header.total <= part->coding->landing().bytes &&
                    (part->expected == 0 || part->expected == header.total);
  return fits ? part : nullptr;
}

// Nothing else would ever end that round.
void Channel::FailMisfit(const Header& header) {
  const Part* const part = Awaited(header);
  if (part != nullptr && IsMisplaced(*part, header))
    return owner_.FailOnLoop(Status(Code::kCorrupt, name() + " answered for key " + std::to_string(part->key) +
                                                        (part->absent ? " an absent rank with a result"
                                                                      : " a rank that is not absent as if it were")));
  if (part == nullptr || !part->encoded) return;
  owner_.FailOnLoop(Status(Code::kCorrupt, name() + " sent a result of " + std::to_string(header.total) +
                                               " bytes for key " + std::to_string(part->key) + ", which codec " +
                                               part->coding->codec->spec() + " can't give"));
}

std::byte* Channel::PlaceFor(Link& link, const Header& header) {
  if (&link != link_.get()) return nullptr;
  if (header.type == FrameType::kResult) {
    Part* const part = Expected(header);
    if (part != nullptr && header.offset == part->landed) {
      if (part->held) DropHeld(*part);
      return LandingOf(*part).data + header.offset;
    }
  }
  if (header.type == FrameType::kValue && kept_.Holds(header.key)) return kept_.PlaceFor(header);
  return kAnywhere;  // texts, and payloads that are no longer waited for
}

void Channel::OnFrame(Link& link, const Header& header, std::byte* payload) {
  ++counters_.frames_received;
  counters_.payload_received += header.length;
  Heard();
  warnings = 0;
  if (&link != link_.get()) return;
  counters_.payload_placed = placed_before_ + link.counters().payload_placed;
  const auto text = [&] { return std::string(reinterpret_cast<const char*>(payload), header.length); };
  switch (header.type) {
    case FrameType::kResult:
      if (Part* const part = Expected(header)) return OnResult(*part, header);
      return FailMisfit(header);
    case FrameType::kResumed:
      if (Part* const part = Expected(header)) OnResumed(*part, header);
      return;
    case FrameType::kContributors:
      if (header.view != context_.options.credentials.view) return;
      return header.aux == 0 ? absences_.Hear(header) : absences_.HearOfGiven(header);
    case FrameType::kAdopted:
      return OnAdopted(header);
    case FrameType::kTake:
      return OnTake(header);
    case FrameType::kGive:
      if (Part* const part = Expected(header)) OnGive(*part, header, payload);
      return;
    case FrameType::kWarning:
      return context_.options.on_event(CodeFrom(header.aux), text(), false);
    case FrameType::kError:
      return owner_.FailOnLoop(Status(CodeFrom(header.aux), text()));
    case FrameType::kRegion:
      return OnNoRegion(header.aux);
    case FrameType::kOpened:
    case FrameType::kApplied:
    case FrameType::kValue:
    case FrameType::kCutoff:
    case FrameType::kNack:
      return OnKept(link, header, payload);
    case FrameType::kCall:
    case FrameType::kCut:
    case FrameType::kState:
      if (header.view != context_.options.credentials.view) return;
      if (const Status wrong = kept_.OnAnswer(header, text()); !wrong.ok()) link.Close(wrong);
      return;
    default:
      return link.Close(Status(Code::kCorrupt, "a server sent a frame that only workers send"));
  }
}

void Channel::OnKept(Link& link, const Header& header, const std::byte* payload) {
  if (header.view != context_.options.credentials.view || !kept_.Holds(header.key)) return;
  if (const Status wrong = kept_.OnFrame(header, payload); !wrong.ok()) link.Close(wrong);
}

void Channel::OnResult(Part& part, const Header& header) {
  if (Tracing() && part.traced.landed == 0) part.traced.landed = TraceClock();
  const bool in_place = (header.flags & (kByReference | kAbsent)) != 0;
  if (part.encoded) part.expected = header.total;
  if (!in_place && header.offset == part.landed) {
    const int64_t before = Returned(part);
    part.landed += header.length;
    if (part.brings) ahead_ -= Returned(part) - before;
    if (ahead_ <= static_cast<int64_t>(context_.credit_bytes.load())) lent_ = 0;  // in step again
    last_landing_ = Clock::now();
  }
  // Even if it was streamed in the end: over another link the server may have counted what lies in the bounce buffer.
  if ((header.flags & kByReference) != 0 && part.bounce.memory != nullptr) {
    std::memcpy(part.address, part.bounce.data, part.total);
    bounced_ += part.total;
  }
  owner_.Arrived(part, header);
  if (in_place || part.landed == part.expected) {
    if (part.held) Hold(part, header);
    Finish(part, Status());
  }
  if (link_ && !queue_.empty()) link_->Kick();
}

void Channel::OnResumed(Part& part, const Header& header) {
  if (!part.resuming) return;
  if (header.offset < CountedAtLeast(part))
    return owner_.FailOnLoop(Status(Code::kPeerLost, name() + " has lost the sums of rounds in flight"));
  part.resuming = false;
  const auto counted = static_cast<uint32_t>(std::min<uint64_t>(header.offset, part.total));
  if (part.brings) ahead_ += static_cast<int64_t>(counted) - part.sent;
  part.sent = counted;
  if (Unsent(part) > 0) Queue(part);
}

void Channel::TakeOff(Part& part) {
  in_flight_.back()->slot = part.slot;
  std::swap(in_flight_[part.slot], in_flight_.back());
  in_flight_.pop_back();
  if (part.streamed && part.brings) ahead_ -= part.sent - Returned(part);
}

void Channel::Finish(Part& part, const Status& status) {
  TakeOff(part);
  LeaveBounce(part, status);
  if (part.adoption == AdoptionStage::kTaking) {
    part.absences = absences_.TakeOfGiven(part.key);
  } else if (!absences_.empty()) {
    part.absences = absences_.Take(part.key, part.round);
  }
  part.adoption = AdoptionStage::kOver;
  part.streamed = part.begun = part.queued = false;
  if (Tracing() && status.ok() && !part.absent) TraceStage(TraceKind::kReceived, part, part.traced.landed);
  ++part.round;
  owner_.Landed(part, status);
}

// For the timeline ----------------------------------------------------------------------------------------------------

void Channel::TraceStage(TraceKind kind, const Part& part, int64_t begin) const {
  TraceSince(begin, {.kind = kind,
                     .key = part.key,
                     .bytes = part.total,
                     .round = part.round,
                     .priority = part.priority,
                     .member = context_.traced(),
                     .peer = kTraceServers + address_.server});
}

// It was handed over a moment ago, on another thread.
void Channel::TraceReady(const Part& part) const {
  Trace({.kind = TraceKind::kReady,
         .begin = part.traced.ready == 0 ? TraceClock() : part.traced.ready,
         .key = part.key,
         .bytes = part.total,
         .round = part.round,
         .priority = part.priority,
         .member = context_.traced()});
}

void Channel::TraceFirst(Part& part) const {
  if (part.begun) return;
  TraceStage(TraceKind::kQueued, part, part.traced.ready);
  part.traced.sent = TraceClock();
}

void Channel::TraceSent(const Header& header) const {
  const bool last = header.length == 0 || header.offset + header.length == header.total;
  if (header.type != FrameType::kPush || !last) return;
  const auto found = parts_.find(header.key);
  if (found == parts_.end() || found->second->round != header.round || found->second->absent) return;
  TraceStage(TraceKind::kSent, *found->second, found->second->traced.sent);
}

}  // namespace byteps_like
