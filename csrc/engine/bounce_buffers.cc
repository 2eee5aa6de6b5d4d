#include "csrc/engine/bounce_buffers.h"

#include <algorithm>
#include <utility>

#include "csrc/base/log.h"

namespace byteps_like {
namespace {

constexpr size_t kAlignment = 64;

// As many bytes are in use at a time: what a server sums is in the cache yet, and what it has summed when it is copied
// back. Of large places as many as it takes to copy one, sum one and copy one back meanwhile.
constexpr size_t kCached = 4u << 20;
constexpr size_t kFewest = 4;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

bool BounceBuffers::Serves(size_t bytes) {
  if (refused_ || bytes > capacity_ / 2) return false;
  if (memory_ != nullptr) return true;
  auto made = SharedBuffer::Create(capacity_);
  if (!made.ok()) {
    refused_ = true;
    Log(LogLevel::kInfo,
        "private tensors are streamed to servers of this host, not shared: " + made.status().message());
    return false;
  }
  memory_ = std::move(*made);
  region_ = regions_.Add(memory_);
  free_.assign(1, {0, capacity_});
  return true;
}

// The first place that is large enough, so that few pages are used over and over, and stay in the cache.
Bounce BounceBuffers::Take(size_t bytes) {
  const size_t length = Aligned(bytes);
  if (places_ >= kFewest && used_ + length > kCached) return {};
  const auto found = std::ranges::find_if(free_, [&](const Extent& free) { return free.end - free.begin >= length; });
  if (found == free_.end()) return {};
  const Bounce taken{memory_, memory_->data() + found->begin, length};
  found->begin += length;
  ++places_;
  used_ += length;
  if (found->begin == found->end) free_.erase(found);
  return taken;
}

void BounceBuffers::Give(Bounce& bounce) {
  const Bounce given = std::exchange(bounce, {});
  if (given.memory == nullptr || given.memory != memory_) return;
  --places_;
  used_ -= given.bytes;
  const auto begin = static_cast<size_t>(given.data - memory_->data());
  auto next = std::ranges::lower_bound(free_, begin, {}, &Extent::begin);
  next = free_.insert(next, {begin, begin + given.bytes});
  if (next + 1 != free_.end() && next->end == (next + 1)->begin) {
    next->end = (next + 1)->end;
    free_.erase(next + 1);
  }
  if (next == free_.begin() || (next - 1)->end != next->begin) return;
  (next - 1)->end = next->end;
  free_.erase(next);
}

void BounceBuffers::Abandon(Bounce& bounce) {
  const Bounce abandoned = std::exchange(bounce, {});
  if (abandoned.memory == nullptr || abandoned.memory != memory_) return;
  memory_.reset();
  free_.clear();
  places_ = used_ = 0;
}

}  // namespace byteps_like
