#include "csrc/engine/keeping/kept_key.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

constexpr uint32_t kNoVersion = 0xFFFFFFFF;

bool IsBefore(uint32_t clock, uint32_t other) { return static_cast<int32_t>(clock - other) < 0; }

}  // namespace

KeptKey::KeptKey(const KeySpec& spec, KeepSink& sink) : spec_(spec), sink_(sink) {}

void KeptKey::Open(const std::byte* initial, KeepTicket opening) {
  if (opened_) return sink_.Settled(opening, Status(), {});
  if (initial != nullptr) initial_ = initial;
  openings_.push_back(std::move(opening));
}

void KeptKey::Change(uint32_t text, KeepTicket change) {
  if (!change_) {
    if (text == spec_.text) return sink_.Settled(change, Status(), {});
    change_ = Changing{.text = text};
  }
  if (change_->text != text)
    return sink_.Settled(
        change,
        Status(Code::kInvalid, "store key " + std::to_string(spec_.key) + " waits for another change of its policy"),
        {});
  change_->tickets.push_back(std::move(change));
}

void KeptKey::Push(KeepPush push) {
  Pushing& pushing = pushes_.emplace_back(Pushing{std::move(push)});
  EncodeNote(pushing.note, pushing.written);
  pushing.clock = clock_++;
  if (unsent_ == pushes_.end()) unsent_ = std::prev(pushes_.end());
}

void KeptKey::Read(KeepRead read) {
  reads_.push_back({std::move(read)});
  reads_.back().clock = clock_;
}

void KeptKey::OnNewLink() {
  door_ = Door::kShut;
  setting_.reset();
  unanswered_ = 0;
  for (Pushing& push : pushes_) {
    push.begun = push.repeated = false;
    push.sent = 0;
  }
  unsent_ = pushes_.begin();
  for (Reading& read : reads_) {
    read.asked = false;
    read.landed = 0;
  }
  if (change_) change_->asked = false;
}

// Out

// The first that may be asked for: answers name a read by its clock alone.
KeptKey::Reading* KeptKey::NextRead() {
  const Reading* asked = nullptr;  // the last one
  for (Reading& read : reads_) {
    if (!read.asked && (asked == nullptr || asked->clock != read.clock)) return &read;
    if (read.asked) asked = &read;
  }
  return nullptr;
}

// In the order of the calls; but a contribution behind a read that waits is not held up.
KeptKey::Reading* KeptKey::ReadToSend() {
  Reading* const read = NextRead();
  return read != nullptr && (unsent_ == pushes_.end() || read->order < unsent_->order) ? read : nullptr;
}

// After all that was called before it.
bool KeptKey::changes_next() { return change_ && !change_->asked && unsent_ == pushes_.end() && NextRead() == nullptr; }

std::optional<KeptKey::Turn> KeptKey::next() {
  if (door_ == Door::kAsked) return std::nullopt;
  if (door_ != Door::kOpen || changes_next()) return Turn{std::numeric_limits<int32_t>::max(), 0};
  if (const Reading* const read = ReadToSend()) return Turn{read->priority, read->order};
  if (unsent_ == pushes_.end()) return std::nullopt;
  return Turn{unsent_->priority, unsent_->order};
}

bool KeptKey::begins_push() {
  return door_ == Door::kOpen && !changes_next() && ReadToSend() == nullptr && !unsent_->begun;
}

void KeptKey::Next(size_t segment, Outgoing& next) {
  switch (door_) {
    case Door::kShut:
      door_ = Door::kAsked;
      return AskToOpen(spec_.text, 0, next);
    case Door::kSetting:
      Send(*setting_, segment, next);
      if (setting_->sent == spec_.bytes) door_ = Door::kShut;  // asks again, to hear that it has arrived
      return;
    default:
      break;
  }
  if (changes_next()) {
    change_->asked = true;
    return AskToOpen(change_->text, kChanges, next);
  }
  if (Reading* const read = ReadToSend()) return Ask(*read, next);
  if (!unsent_->begun) unanswered_ += spec_.bytes;
  Send(*unsent_, segment, next);
  if (unsent_->sent == spec_.bytes) ++unsent_;
}

Header KeptKey::HeaderFor(FrameType type, uint32_t number) const {
  Header header;
  header.type = type;
  header.dtype = spec_.dtype;
  header.key = spec_.key;
  header.round = number;
  header.total = spec_.bytes;
  return header;
}

void KeptKey::AskToOpen(uint32_t text, uint32_t number, Outgoing& next) {
  next.header = HeaderFor(FrameType::kSpec, number);
  next.header.offset = spec_.width;
  next.header.root = spec_.root;
  next.header.aux = text;
}

void KeptKey::Ask(Reading& read, Outgoing& next) {
  read.asked = true;
  next.header = HeaderFor(FrameType::kPull, read.clock);
  next.header.aux = read.least;
  next.header.root = kNoVersion;
  next.header.priority = read.priority;
}

// The note goes alone, so that no byte behind it has to be copied.
void KeptKey::Send(Pushing& push, size_t segment, Outgoing& next) {
  next.header = HeaderFor(FrameType::kPush, push.clock);
  next.header.flags = kSilent;
  next.header.priority = push.priority;
  if (!push.begun) {
    push.begun = true;
    if (push.repeated) push.sent = spec_.bytes;
    next.header.flags |= kNoted;
    next.header.aux = pushes_.empty() ? 0 : pushes_.front().clock;  // what became of those before is known here
    next.header.length = kNoteBytes;
    next.payload = push.written.data();
    return;
  }
  next.header.offset = push.sent;
  next.header.length = static_cast<uint32_t>(std::min<size_t>(segment, spec_.bytes - push.sent));
  next.payload = push.data + push.sent;
  push.sent += next.header.length;
}

// In

std::list<KeptKey::Reading>::iterator KeptKey::Awaited(const Header& header) {
  return std::ranges::find_if(reads_, [&](const Reading& read) { return read.asked && read.clock == header.round; });
}

std::byte* KeptKey::PlaceFor(const Header& header) {
  const auto read = Awaited(header);
  const bool fits = read != reads_.end() && header.total == spec_.bytes && header.offset == read->landed;
  return fits ? read->out + header.offset : kAnywhere;
}

Status KeptKey::OnFrame(const Header& header) {
  switch (header.type) {
    case FrameType::kOpened:
      return OnOpened(header);
    case FrameType::kApplied:
      return OnApplied(header);
    default:
      return OnValue(header);
  }
}

Status KeptKey::OnOpened(const Header& header) {
  if (header.aux == kChanged) Changed();
  if (door_ != Door::kAsked || header.aux == kChanged) return Status();
  if (header.aux == kHasValue) {
    GoOn(header.round);
    return Status();
  }
  if (initial_ == nullptr)
    return Status(Code::kInvalid, "store key " + std::to_string(spec_.key) +
                                      " has no value yet: this rank is to set it, but gives none");
  setting_ = Pushing{{.data = initial_, .note = {.bits = kLastBlock | kInitial}, .ticket = {}}};
  EncodeNote(setting_->note, setting_->written);
  door_ = Door::kSetting;
  return Status();
}

void KeptKey::Changed() {
  if (!change_ || !change_->asked) return;
  spec_.text = change_->text;
  EndChange(Status());
}

void KeptKey::EndChange(const Status& how) {
  const std::vector<KeepTicket> tickets = std::move(change_->tickets);
  change_.reset();
  for (const KeepTicket& ticket : tickets) sink_.Settled(ticket, how, {});
}

// The server has the contributions of this rank before `clock`.
void KeptKey::GoOn(uint32_t clock) {
  door_ = Door::kOpen;
  initial_ = nullptr;
  setting_.reset();
  if (std::exchange(opened_, true)) {
    for (Pushing& push : pushes_) push.repeated = IsBefore(push.clock, clock);
    return;
  }
  clock_ += clock;
  for (Pushing& push : pushes_) push.clock += clock;
  for (Reading& read : reads_) read.clock += clock;
  for (const KeepTicket& opening : std::exchange(openings_, {})) sink_.Settled(opening, Status(), {});
}

Status KeptKey::OnApplied(const Header& header) {
  const auto applied = static_cast<Applied>(header.aux);
  if (applied == Applied::kHeld) return Status();
  const auto push = std::ranges::find(pushes_, header.round, &Pushing::clock);
  if (push == pushes_.end()) return Status();
  if (header.aux > static_cast<uint32_t>(Applied::kNotFinite) || push->sent != spec_.bytes)
    return Status(Code::kCorrupt, "store key " + std::to_string(spec_.key) + ": contribution " +
                                      std::to_string(header.round) + ", which was not sent whole, was answered");
  unanswered_ -= spec_.bytes;
  const KeepTicket ticket = std::move(push->ticket);
  pushes_.erase(push);
  sink_.Settled(ticket, Status(), {applied, header.offset});
  return Status();
}

Status KeptKey::OnValue(const Header& header) {
  const auto read = Awaited(header);
  if (read == reads_.end()) return Status();
  if (header.total != spec_.bytes || header.offset != read->landed ||
      (read->landed != 0 && header.root != read->version))
    return Status(Code::kCorrupt, "the value of store key " + std::to_string(spec_.key) + " goes on at byte " +
                                      std::to_string(header.offset) + " of " + std::to_string(header.total) +
                                      ", version " + std::to_string(header.root) + ", not at byte " +
                                      std::to_string(read->landed) + " of version " + std::to_string(read->version));
  read->version = header.root;
  read->landed += header.length;
  if (read->landed < spec_.bytes) return Status();
  const KeepTicket ticket = std::move(read->ticket);
  reads_.erase(read);
  sink_.Settled(ticket, Status(), {Applied::kCounted, header.root});
  return Status();
}

void KeptKey::End(const Status& why) {
  for (const KeepTicket& opening : std::exchange(openings_, {})) sink_.Settled(opening, why, {});
  if (change_) EndChange(why);
  for (const Pushing& push : pushes_) sink_.Settled(push.ticket, why, {});
  for (const Reading& read : reads_) sink_.Settled(read.ticket, why, {});
  pushes_.clear();
  reads_.clear();
  unsent_ = pushes_.end();
  unanswered_ = 0;
}

}  // namespace byteps_like
