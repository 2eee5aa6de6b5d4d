#include "collectives/exchange/exchange_outbox.h"

#include <algorithm>
#include <utility>

namespace byteps_like {
namespace {

bool GoesBefore(const Outbound& a, const Outbound& b) {
  if (a.message->traffic != b.message->traffic) return a.message->traffic < b.message->traffic;
  if (a.message->priority != b.message->priority) return a.message->priority > b.message->priority;
  return a.order < b.order;
}

}  // namespace

Header Outbox::HeaderOf(FrameType type, const Flow& flow) const {
  Header header;
  header.type = type;
  header.view = view_;
  header.member = member_;
  header.key = flow.id.lane;
  header.round = flow.id.call;
  header.root = flow.tag;
  return header;
}

void Outbox::Control(Header header, std::string text, size_t charged) {
  header.view = view_;
  header.member = member_;
  header.length = static_cast<uint32_t>(text.size());
  control_.push_back(std::make_unique<Text>(Text{header, std::move(text), charged}));
}

// The queue ---------------------------------------------------------------------------------------------------------

void Outbox::Queue(Outbound& out) {
  if (out.queued || out.parked || !out.HasMore()) return;
  if (out.order == 0) out.order = ++orders_;
  Link(out);
}

// Most are the youngest of the lowest rank: looked for from the end.
void Outbox::Link(Outbound& out) {
  Outbound* before = last_;
  while (before != nullptr && GoesBefore(out, *before)) before = before->before;
  out.before = before;
  out.after = before != nullptr ? before->after : first_;
  (out.after != nullptr ? out.after->before : last_) = &out;
  (before != nullptr ? before->after : first_) = &out;
  out.queued = true;
}

void Outbox::Unlink(Outbound& out) {
  if (!out.queued) return;
  (out.before != nullptr ? out.before->after : first_) = out.after;
  (out.after != nullptr ? out.after->before : last_) = out.before;
  out.before = out.after = nullptr;
  out.queued = false;
}

void Outbox::Park(Outbound& out) {
  Unlink(out);
  out.parked = true;
  parked_.push_back(&out);
  if (!out.flow->asked) out.owner->Launch(*out.flow, true);
}

template <typename Condition>
void Outbox::Unpark(Condition condition) {
  std::vector<Outbound*> parked;
  parked.swap(parked_);
  for (Outbound* out : parked) {
    if (!condition(*out)) {
      parked_.push_back(out);
      continue;
    }
    out->parked = false;
    Queue(*out);
  }
}

void Outbox::Cleared(Flow& flow) {
  flow.cleared = true;
  Unpark([&](const Outbound& out) { return out.flow == &flow; });
}

void Outbox::Credit(uint64_t bytes) {
  eager_left_ = std::min<uint64_t>(eager_left_ + bytes, kEagerBytes);
  Unpark([&](const Outbound& out) { return out.message->length <= std::min<uint64_t>(kEagerMessage, eager_left_); });
}

bool Outbox::Remove(Outbound& out) {
  Unlink(out);
  if (std::exchange(out.parked, false)) std::erase(parked_, &out);
  bool read = false;
  for (InFlight& flying : in_flight_) {
    if (flying.out != &out) continue;
    flying.out = nullptr;
    read = true;
  }
  return read;
}

void Outbox::Drop() {
  control_.clear();
  in_flight_.clear();
}

// The link ------------------------------------------------------------------------------------------------------------

bool Outbox::Next(Outgoing& next) {
  while (control_.empty() && first_ != nullptr) {
    Outbound& out = *first_;
    SendMessage& message = *out.message;
    const uint64_t length = std::min<uint64_t>(message.ready - out.next, std::clamp(message.segment_bytes, 1u, most_));
    const bool eager = !out.flow->cleared;
    if (eager && (message.length > kEagerMessage || length > eager_left_)) {
      Park(out);
      continue;
    }
    next.header = HeaderOf(FrameType::kData, *out.flow);
    next.header.root = message.tag;
    next.header.priority = message.priority;
    next.header.offset = out.next;
    next.header.length = static_cast<uint32_t>(length);
    next.header.aux = static_cast<uint32_t>(message.length);
    next.header.total = static_cast<uint32_t>(message.length >> 32) | (eager ? kEagerMark : 0);
    next.payload = message.data + out.next;
    if (eager) eager_left_ -= length;
    out.next += length;
    out.begun = true;
    if (!out.HasMore()) Unlink(out);
    in_flight_.push_back({&out, nullptr});
    return true;
  }
  if (control_.empty()) return false;
  in_flight_.push_back({nullptr, std::move(control_.front())});
  control_.pop_front();
  const Text& text = *in_flight_.back().control;
  next.header = text.header;
  next.payload = reinterpret_cast<const std::byte*>(text.text.data());
  return true;
}

size_t Outbox::OnSent(const Header& header) {
  if (in_flight_.empty()) return 0;
  const InFlight sent = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (sent.control != nullptr) return sent.control->charged;
  if (sent.out == nullptr) return 0;
  sent.out->message->sent += header.length;
  sent.out->owner->OnSent(*sent.out);
  return 0;
}

}  // namespace byteps_like
