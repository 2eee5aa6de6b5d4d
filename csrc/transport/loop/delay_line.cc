#include "csrc/transport/loop/delay_line.h"

#include <algorithm>
#include <cstring>

namespace byteps_like {

DelayLine::DelayLine(std::chrono::nanoseconds delay)
    : delay_(delay), bytes_(std::make_unique_for_overwrite<std::byte[]>(kBytes)) {}

void DelayLine::FillFrom(Stream& stream, Deadline now) {
  while (end_.ok() && head_ - tail_ < kBytes) {
    const size_t at = head_ % kBytes;
    auto got = stream.Read(bytes_.get() + at, std::min<size_t>(kBytes - at, kBytes - (head_ - tail_)));
    if (!got.ok()) end_ = got.status();
    if (!got.ok() || *got == 0) return;
    head_ += *got;
    batches_.push_back({*got, now + delay_});
  }
}

Result<size_t> DelayLine::Read(std::byte* data, size_t size, Deadline now) {
  if (batches_.empty()) {
    if (!end_.ok()) return end_;
    return size_t{0};
  }
  Batch& batch = batches_.front();
  if (batch.due > now) return size_t{0};
  const size_t at = tail_ % kBytes;
  const size_t bytes = std::min({size, batch.bytes, kBytes - at});
  std::memcpy(data, bytes_.get() + at, bytes);
  tail_ += bytes;
  batch.bytes -= bytes;
  if (batch.bytes == 0) batches_.pop_front();
  return bytes;
}

std::optional<Deadline> DelayLine::wake_at() const {
  if (batches_.empty()) return std::nullopt;
  return batches_.front().due;
}

}  // namespace byteps_like
