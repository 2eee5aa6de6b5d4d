#include "csrc/engine/keeping/kept_table.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

constexpr uint32_t kRequests = 1u << 30;  // their numbers
constexpr size_t kMostUnanswered = 1024;  // so many answers a server can give again

}  // namespace

KeptTable::KeptTable(const KeySpec& spec, KeepSink& sink, RowNumbers::Limits limits)
    : sink_(&sink), door_(spec, sink), numbers_(limits) {}

void KeptTable::Open(const std::byte*, KeepTicket opening) { door_.Open(std::move(opening)); }

void KeptTable::Push(KeepPush push) { pushes_.Add(std::move(push)); }

void KeptTable::Fetch(KeepFetch fetch) {
  Fetching& fetching = fetches_.emplace_back(Fetching{std::move(fetch)});
  fetching.clock = pushes_.clock();
  fetching.request = requests_++ % kRequests;
}

void KeptTable::Move(KeepSink& sink, const Renumber& renumber) {
  sink_ = &sink;
  door_.Move(sink, renumber);
}

void KeptTable::OnNewLink() {
  door_.OnNewLink();
  numbers_.OnNewLink();
  pushes_.OnNewLink();
  for (Fetching& fetch : fetches_) {
    fetch.asked = false;
    fetch.landed = 0;
  }
}

// Out

KeptTable::Fetching* KeptTable::NextFetch() {
  const auto next = std::ranges::find(fetches_, false, &Fetching::asked);
  return next == fetches_.end() ? nullptr : &*next;
}

// In the order of the calls; but a contribution behind a read that waits is not held up.
KeptTable::Fetching* KeptTable::FetchToSend() {
  Fetching* const fetch = NextFetch();
  const Pushing* const push = pushes_.unsent();
  const bool first = fetch != nullptr && (push == nullptr || fetch->order < push->order);
  return first && HasNumber(*fetch) ? fetch : nullptr;
}

Pushing* KeptTable::PushToSend() {
  Pushing* const push = pushes_.unsent();
  if (push == nullptr || (!push->begun && pushes_.begun() >= kMostUnanswered)) return nullptr;
  return HasNumber(*push) ? push : nullptr;
}

bool KeptTable::HasNumber(Fetching& fetch) {
  if (fetch.rows && !fetch.number) fetch.number = numbers_.Hold(fetch.rows);
  return !fetch.rows || fetch.number;
}

bool KeptTable::HasNumber(const Pushing& push) {
  if (push.idle || lists_.contains(push.clock)) return true;
  const auto number = numbers_.Hold(push.rows);
  if (number) lists_.emplace(push.clock, *number);
  return number.has_value();
}

// After all that was called before it.
bool KeptTable::changes_next() { return door_.changes() && pushes_.unsent() == nullptr && NextFetch() == nullptr; }

std::optional<Kept::Turn> KeptTable::next() {
  if (door_.waits()) return std::nullopt;
  if (!door_.open() || changes_next()) return Turn{std::numeric_limits<int32_t>::max(), 0};
  if (const Fetching* const fetch = FetchToSend()) return Turn{fetch->priority, fetch->order};
  const Pushing* const push = PushToSend();
  if (push == nullptr) return std::nullopt;
  return Turn{push->priority, push->order};
}

// Where the server has the contribution already, its note will do.
bool KeptTable::tells(const Pushing& push) const {
  return !push.idle && !push.repeated && !numbers_.known(lists_.at(push.clock));
}

std::optional<uint64_t> KeptTable::begins() {
  if (!door_.open() || changes_next() || FetchToSend() != nullptr) return std::nullopt;
  const Pushing* const push = PushToSend();
  if (push == nullptr || push->begun || tells(*push)) return std::nullopt;
  return push->bytes;
}

void KeptTable::Next(size_t segment, Outgoing& next) {
  next.header = {};
  if (!door_.open()) return door_.Ask(next);
  if (changes_next()) return door_.AskToChange(next);
  if (Fetching* const fetch = FetchToSend()) {
    SendFetch(*fetch, segment, next);
  } else {
    SendRows(*PushToSend(), segment, next);
  }
  next.header.dtype = spec().dtype;
  next.header.key = spec().key;
}

void KeptTable::SendFetch(Fetching& fetch, size_t segment, Outgoing& next) {
  next.header.priority = fetch.priority;
  if (fetch.number && !numbers_.known(*fetch.number)) return numbers_.Announce(*fetch.number, segment, next);
  fetch.asked = true;
  next.header.type = FrameType::kFetch;
  next.header.round = fetch.clock;
  next.header.total = fetch.request;
  next.header.aux = fetch.number.value_or(kRange);
  if (fetch.rows) {
    next.header.root = fetch.rows->crc;
  } else {
    next.header.offset = fetch.since;
    next.header.root = fetch.most;
    next.header.length = sizeof(fetch.range);
    next.payload = reinterpret_cast<const std::byte*>(fetch.range.data());
  }
}

void KeptTable::SendRows(Pushing& push, size_t segment, Outgoing& next) {
  next.header.priority = push.priority;
  if (push.idle) return pushes_.Send(segment, next);
  const uint32_t number = lists_.at(push.clock);
  if (tells(push)) return numbers_.Announce(number, segment, next);
  next.header.type = FrameType::kRows;
  next.header.aux = number;
  next.header.root = push.rows->crc;
  pushes_.Send(segment, next);
}

// In

Status KeptTable::OnFrame(const Header& header, const std::byte* payload) {
  switch (header.type) {
    case FrameType::kOpened:
      return OnOpened(header);
    case FrameType::kApplied:
      return OnApplied(header, payload);
    case FrameType::kNack:
      OnNack(header);
      return Status();
    default:
      return OnValue(header);
  }
}

Status KeptTable::OnOpened(const Header& header) {
  switch (door_.OnOpened(header)) {
    case KeyDoor::Answer::kNothing:
      return Status();
    case KeyDoor::Answer::kLacksValue:
      return Status(Code::kCorrupt, "table key " + std::to_string(spec().key) + " has no value: it begins as zeros");
    case KeyDoor::Answer::kFirst:
      pushes_.Begin(header.round);
      for (Fetching& fetch : fetches_) fetch.clock += header.round;
      break;
    case KeyDoor::Answer::kAgain:
      pushes_.Repeat(header.round);
      break;
  }
  door_.Settle();
  return Status();
}

Status KeptTable::OnApplied(const Header& header, const std::byte* payload) {
  auto answered = pushes_.Answered(header);
  if (!answered.ok()) return answered.status();
  if (!*answered) return Status();
  if (const auto list = lists_.find(header.round); list != lists_.end()) {
    numbers_.Release(list->second);
    lists_.erase(list);
  }
  sink_->Settled((*answered)->ticket, Status(),
                 {static_cast<Applied>(header.aux), header.offset, DecodeRanks(std::span(payload, header.length))});
  return Status();
}

// The list is told of again, and so is what was about it.
void KeptTable::OnNack(const Header& header) {
  if (header.total == kNackedRows) {
    Pushing* const push = pushes_.Find(header.round);
    const auto list = lists_.find(header.round);
    if (push == nullptr || push->idle || !push->begun || list->second != header.aux || push->rows->crc != header.root)
      return;
    pushes_.Rewind(*push);
  } else {
    const auto fetch = Awaited(static_cast<uint32_t>(header.offset));
    if (fetch == fetches_.end() || fetch->number != header.aux || fetch->rows->crc != header.root) return;
    fetch->asked = false;
  }
  numbers_.Lacks(header.aux, header.root);
}

std::list<KeptTable::Fetching>::iterator KeptTable::Awaited(uint32_t request) {
  return std::ranges::find_if(fetches_, [&](const Fetching& one) { return one.asked && one.request == request; });
}

bool KeptTable::Fits(const Fetching& fetch, const Header& header) const {
  if (header.offset != fetch.landed) return false;
  if (fetch.landed != 0 && (header.root != fetch.version || header.total != fetch.total)) return false;
  if (fetch.filtered) return true;
  if (fetch.rows) return header.total == fetch.rows->ids.size() * spec().bytes;
  return header.total % (sizeof(uint64_t) + spec().bytes) == 0;
}

std::byte* KeptTable::PlaceFor(const Header& header) {
  const auto fetch = Awaited(header.aux);
  if (fetch == fetches_.end() || !Fits(*fetch, header)) return kAnywhere;
  if (fetch->rows && !fetch->filtered) return fetch->out + header.offset;
  auto& found = fetch->ticket.operation->ranges[fetch->ticket.index];
  if (header.offset == 0) found.resize(header.total);
  return found.data() + header.offset;
}

Status KeptTable::OnValue(const Header& header) {
  const auto fetch = Awaited(header.aux);
  if (fetch == fetches_.end()) return Status();
  if (!Fits(*fetch, header))
    return Status(Code::kCorrupt, "the answer to read " + std::to_string(header.aux) + " of table key " +
                                      std::to_string(spec().key) + " goes on at byte " + std::to_string(header.offset) +
                                      " of " + std::to_string(header.total) + ", version " +
                                      std::to_string(header.root) + ", not at byte " + std::to_string(fetch->landed) +
                                      " of version " + std::to_string(fetch->version));
  fetch->version = header.root;
  fetch->total = header.total;
  fetch->landed += header.length;
  if (fetch->landed < header.total) return Status();
  if (fetch->number) numbers_.Release(*fetch->number);
  const KeepTicket ticket = std::move(fetch->ticket);
  fetches_.erase(fetch);
  sink_->Settled(ticket, Status(), {Applied::kCounted, header.root});
  return Status();
}

void KeptTable::End(const Status& why) {
  door_.End(why);
  pushes_.End(*sink_, why);
  for (const Fetching& fetch : fetches_) sink_->Settled(fetch.ticket, why, {});
  fetches_.clear();
}

}  // namespace byteps_like
