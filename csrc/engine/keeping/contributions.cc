#include "csrc/engine/keeping/contributions.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace byteps_like {
namespace {

bool IsBefore(uint32_t clock, uint32_t other) { return static_cast<int32_t>(clock - other) < 0; }

}  // namespace

void Pushing::Send(size_t segment, Outgoing& next) {
  next.header.round = clock;
  next.header.priority = priority;
  next.header.total = bytes;
  next.header.flags = kSilent;
  if (idle) next.header.type = FrameType::kClock;
  if (!begun) {
    begun = true;
    if (repeated) sent = bytes;
    next.header.flags |= kNoted;
    next.header.length = kNoteBytes;
    next.payload = written.data();
    return;
  }
  next.header.offset = sent;
  next.header.length = static_cast<uint32_t>(std::min<size_t>(segment, bytes - sent));
  next.payload = data + sent;
  sent += next.header.length;
}

void Contributions::Add(KeepPush push) {
  Pushing& pushing = pushes_.emplace_back(std::move(push));
  pushing.clock = clock_++;
  if (unsent_ == pushes_.end()) unsent_ = std::prev(pushes_.end());
}

Pushing* Contributions::unsent() { return unsent_ == pushes_.end() ? nullptr : &*unsent_; }

Pushing* Contributions::Find(uint32_t clock) {
  const auto found = std::ranges::find(pushes_, clock, &Pushing::clock);
  return found == pushes_.end() ? nullptr : &*found;
}

void Contributions::Send(size_t segment, Outgoing& next) {
  if (!unsent_->begun) {
    unanswered_ += unsent_->bytes;
    ++begun_;
  }
  unsent_->Send(segment, next);
  if (unsent_->whole()) ++unsent_;
}

void Contributions::OnNewLink() {
  for (Pushing& push : pushes_) Restart(push);
  unsent_ = pushes_.begin();
}

void Contributions::Restart(Pushing& push) {
  if (push.begun) {
    unanswered_ -= push.bytes;
    --begun_;
  }
  push.begun = push.repeated = false;
  push.sent = 0;
}

void Contributions::Begin(uint32_t clock) {
  clock_ += clock;
  for (Pushing& push : pushes_) push.clock += clock;
}

void Contributions::Repeat(uint32_t clock) {
  for (Pushing& push : pushes_) push.repeated = IsBefore(push.clock, clock);
}

void Contributions::Rewind(Pushing& push) {
  unsent_ = std::ranges::find(pushes_, push.clock, &Pushing::clock);
  for (auto each = unsent_; each != pushes_.end(); ++each) Restart(*each);
}

Result<std::optional<Pushing>> Contributions::Answered(const Header& applied) {
  if (static_cast<Applied>(applied.aux) == Applied::kHeld) return std::optional<Pushing>();
  const auto push = std::ranges::find(pushes_, applied.round, &Pushing::clock);
  if (push == pushes_.end()) return std::optional<Pushing>();
  if (applied.aux > static_cast<uint32_t>(Applied::kNotFinite) || !push->whole())
    return Status(Code::kCorrupt, "store key " + std::to_string(applied.key) + ": contribution " +
                                      std::to_string(applied.round) + ", which was not sent whole, was answered");
  unanswered_ -= push->bytes;
  --begun_;
  std::optional<Pushing> answered(std::move(*push));
  pushes_.erase(push);
  return answered;
}

void Contributions::End(KeepSink& sink, const Status& why) {
  for (const Pushing& push : pushes_) sink.Settled(push.ticket, why, {});
  pushes_.clear();
  unsent_ = pushes_.end();
  unanswered_ = begun_ = 0;
}

}  // namespace byteps_like
