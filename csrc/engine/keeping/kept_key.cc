#include "csrc/engine/keeping/kept_key.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

constexpr uint32_t kNoVersion = 0xFFFFFFFF;

bool IsZeros(std::span<const std::byte> value) {
  return value.empty() ||
         (value.front() == std::byte{0} && std::memcmp(value.data(), value.data() + 1, value.size() - 1) == 0);
}

}  // namespace

KeptKey::KeptKey(const KeySpec& spec, KeepSink& sink) : sink_(&sink), door_(spec, sink) {}

void KeptKey::Open(const std::byte* initial, KeepTicket opening) {
  if (!door_.opened() && initial != nullptr) initial_ = initial;
  door_.Open(std::move(opening));
}

void KeptKey::Push(KeepPush push) {
  if (!push.idle && push.bytes == 0) push.bytes = spec().bytes;
  pushes_.Add(std::move(push));
  SetCutOff(false);
}

void KeptKey::Read(KeepRead read) {
  reads_.push_back({std::move(read)});
  reads_.back().clock = pushes_.clock();
}

void KeptKey::OnNewLink() {
  door_.OnNewLink();
  setting_.reset();
  pushes_.OnNewLink();
  for (Reading& read : reads_) {
    read.asked = false;
    read.landed = 0;
  }
}

void KeptKey::Move(KeepSink& sink, const Renumber& renumber) {
  sink_ = &sink;
  door_.Move(sink, renumber);
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
  const Pushing* const push = pushes_.unsent();
  return read != nullptr && (push == nullptr || read->order < push->order) ? read : nullptr;
}

// After all that was called before it.
bool KeptKey::changes_next() { return door_.changes() && pushes_.unsent() == nullptr && NextRead() == nullptr; }

std::optional<Kept::Turn> KeptKey::next() {
  if (door_.waits()) return std::nullopt;
  if (!door_.open() || changes_next()) return Turn{std::numeric_limits<int32_t>::max(), 0};
  if (const Reading* const read = ReadToSend()) return Turn{read->priority, read->order};
  const Pushing* const push = pushes_.unsent();
  if (push == nullptr) return std::nullopt;
  return Turn{push->priority, push->order};
}

std::optional<uint64_t> KeptKey::begins() {
  if (!door_.open() || changes_next() || ReadToSend() != nullptr || pushes_.unsent()->begun) return std::nullopt;
  return pushes_.unsent()->bytes;
}

void KeptKey::Next(size_t segment, Outgoing& next) {
  if (setting_ && !setting_->whole()) return SendSetting(segment, next);
  if (!door_.open()) return door_.Ask(next);
  if (changes_next()) return door_.AskToChange(next);
  if (Reading* const read = ReadToSend()) return Ask(*read, next);
  next.header = HeaderFor(FrameType::kPush);
  pushes_.Send(segment, next);
  if ((next.header.flags & kNoted) != 0) next.header.aux = pushes_.heard();
}

// When it is there the door is asked again, to hear that it has arrived.
void KeptKey::SendSetting(size_t segment, Outgoing& next) {
  next.header = HeaderFor(FrameType::kPush);
  setting_->Send(segment, next);
  if ((next.header.flags & kNoted) != 0) next.header.aux = pushes_.heard();
}

Header KeptKey::HeaderFor(FrameType type) const {
  Header header;
  header.type = type;
  header.dtype = spec().dtype;
  header.key = spec().key;
  header.total = spec().bytes;
  return header;
}

void KeptKey::Ask(Reading& read, Outgoing& next) {
  read.asked = true;
  next.header = HeaderFor(FrameType::kPull);
  next.header.round = read.clock;
  next.header.aux = read.least;
  next.header.root = kNoVersion;
  next.header.priority = read.priority;
}

// In

std::list<KeptKey::Reading>::iterator KeptKey::Awaited(const Header& header) {
  return std::ranges::find_if(reads_, [&](const Reading& read) { return read.asked && read.clock == header.round; });
}

bool KeptKey::Fits(const Reading& read, const Header& header) const {
  if (header.offset != read.landed) return false;
  if (read.landed != 0 && (header.root != read.version || header.total != read.total)) return false;
  return read.filtered || header.total == spec().bytes;
}

std::byte* KeptKey::PlaceFor(const Header& header) {
  const auto read = Awaited(header);
  if (read == reads_.end() || !Fits(*read, header)) return kAnywhere;
  if (!read->filtered) return read->out + header.offset;
  auto& payload = read->ticket.operation->ranges[read->ticket.index];
  if (header.offset == 0) payload.resize(header.total);
  return payload.data() + header.offset;
}

Status KeptKey::OnFrame(const Header& header, const std::byte* payload) {
  switch (header.type) {
    case FrameType::kOpened:
      return OnOpened(header);
    case FrameType::kApplied:
      return OnApplied(header, payload);
    case FrameType::kCutoff:
      if (header.round == pushes_.clock()) SetCutOff(true);  // else that contribution is on its way
      return Status();
    default:
      return OnValue(header);
  }
}

Status KeptKey::OnOpened(const Header& header) {
  switch (door_.OnOpened(header)) {
    case KeyDoor::Answer::kNothing:
      return Status();
    case KeyDoor::Answer::kLacksValue:
      if (initial_ == nullptr)
        return Status(Code::kInvalid, "store key " + std::to_string(spec().key) +
                                          " has no value yet: this rank is to set it, but gives none");
      if (IsZeros({initial_, spec().bytes})) {
        door_.BeginAsZeros();
        return Status();
      }
      setting_.emplace(
          KeepPush{.data = initial_, .bytes = spec().bytes, .note = {.bits = kLastBlock | kInitial}, .ticket = {}});
      return Status();
    case KeyDoor::Answer::kFirst:
      pushes_.Begin(header.round);
      for (Reading& read : reads_) read.clock += header.round;
      break;
    case KeyDoor::Answer::kAgain:
      pushes_.Repeat(header.round);
      break;
  }
  initial_ = nullptr;
  setting_.reset();
  door_.Settle();
  return Status();
}

Status KeptKey::OnApplied(const Header& header, const std::byte* payload) {
  auto answered = pushes_.Answered(header);
  if (!answered.ok()) return answered.status();
  if (*answered)
    sink_->Settled((*answered)->ticket, Status(),
                   {static_cast<Applied>(header.aux), header.offset, DecodeRanks(std::span(payload, header.length))});
  return Status();
}

Status KeptKey::OnValue(const Header& header) {
  const auto read = Awaited(header);
  if (read == reads_.end()) return Status();
  if (!Fits(*read, header))
    return Status(Code::kCorrupt, "the value of store key " + std::to_string(spec().key) + " goes on at byte " +
                                      std::to_string(header.offset) + " of " + std::to_string(header.total) +
                                      ", version " + std::to_string(header.root) + ", not at byte " +
                                      std::to_string(read->landed) + " of version " + std::to_string(read->version));
  read->version = header.root;
  read->total = header.total;
  read->landed += header.length;
  if (read->landed < header.total) return Status();
  const KeepTicket ticket = std::move(read->ticket);
  reads_.erase(read);
  sink_->Settled(ticket, Status(), {Applied::kCounted, header.root});
  return Status();
}

void KeptKey::SetCutOff(bool is_so) {
  if (std::exchange(cut_off_, is_so) != is_so) sink_->CutOff(spec().key, is_so);
}

void KeptKey::End(const Status& why) {
  door_.End(why);
  pushes_.End(*sink_, why);
  for (const Reading& read : reads_) sink_->Settled(read.ticket, why, {});
  reads_.clear();
}

}  // namespace byteps_like
