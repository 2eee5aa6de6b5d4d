#include "server/store/chain/successor.h"

#include <algorithm>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

bool IsBefore(uint32_t number, uint32_t other) { return static_cast<int32_t>(number - other) < 0; }

}  // namespace

void Successor::Begin(uint32_t shard, CopyRecord whole) {
  Renew();
  shard_ = shard;
  Add(kCopyBegins, std::move(whole));
  whole_at_ = next_ - 1;
}

void Successor::SetAside() {
  if (std::exchange(set_aside_, true)) return;
  if (whole_) AddFrame(kCopyStays, 0, {});
}

void Successor::Discard() {
  Renew();
  AddFrame(kCopyEnds, 0, {});
}

// The next frame does away with what is there.
void Successor::Renew() {
  begun_at_ = next_;
  whole_at_.reset();
  begun_ = whole_ = held_ = false;
  frames_.clear();
  sent_ = 0;
  for (Waiting& one : waiting_) one.number = begun_at_;
}

void Successor::Update(CopyRecord update) {
  set_aside_ = false;
  Add(kCopyGoesOn, std::move(update));
}

void Successor::End() {
  Renew();
  shard_.reset();
  SayUpTo(begun_at_);
}

void Successor::After(uint32_t rank, double now, std::function<void()> say) {
  if (!defers()) return say();
  waiting_.push_back({begun_ ? next_ - 1 : begun_at_, {rank, now}, std::move(say)});
}

std::optional<Successor::Wait> Successor::LongestWait() const {
  return waiting_.empty() ? std::nullopt : std::optional(waiting_.front().wait);
}

void Successor::Add(CopyPart part, CopyRecord record) {
  uint64_t bulk = 0;
  for (const CopyPiece& piece : record.bulk) bulk += piece.bytes;
  auto text = std::make_shared<const std::string>(std::move(record.text));
  AddFrame(part, bulk, {reinterpret_cast<const std::byte*>(text->data()), text->size(), text});
  uint64_t offset = 0;
  for (const CopyPiece& piece : record.bulk)
    for (size_t done = 0; done < piece.bytes;) {
      const size_t bytes = std::min(piece.bytes - done, kDefaultSegment);
      AddFrame(kCopyBytes, offset, {piece.data + done, bytes, piece.keep});
      done += bytes;
      offset += bytes;
    }
}

void Successor::AddFrame(CopyPart part, uint64_t offset, CopyPiece payload) {
  Header header;
  header.type = FrameType::kCopy;
  header.key = key_;
  header.round = next_++;
  header.offset = offset;
  header.aux = part;
  header.length = static_cast<uint32_t>(payload.bytes);
  frames_.push_back({header, std::move(payload)});
}

std::shared_ptr<const void> Successor::Next(Outgoing& next) {
  const Frame& frame = frames_[sent_++];
  next.header = frame.header;
  next.payload = frame.payload.data;
  return frame.payload.keep;
}

bool Successor::Confirm(uint32_t number) {
  if (!IsBefore(number, next_)) return false;
  while (!frames_.empty() && !IsBefore(number, frames_.front().header.round)) {
    frames_.pop_front();
    sent_ -= sent_ > 0;
  }
  const auto reaches = [number](uint32_t frame) { return !IsBefore(number, frame); };
  begun_ = begun_ || reaches(begun_at_);
  held_ = held_ || (whole_ && reaches(held_at_));
  if (!whole_ && whole_at_ && reaches(*whole_at_)) {
    whole_ = true;
    held_at_ = next_;
    AddFrame(kCopyHolds, 0, {});
    if (set_aside_) AddFrame(kCopyStays, 0, {});
  }
  SayUpTo(number);
  return true;
}

// What is said may bring more of it about.
void Successor::SayUpTo(uint32_t number) {
  while (!waiting_.empty() && !IsBefore(number, waiting_.front().number)) {
    const std::function<void()> say = std::move(waiting_.front().say);
    waiting_.pop_front();
    say();
  }
}

}  // namespace byteps_like
