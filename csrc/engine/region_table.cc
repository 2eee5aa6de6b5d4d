#include "csrc/engine/region_table.h"

#include <utility>

namespace byteps_like {

uint32_t RegionTable::Add(const std::shared_ptr<SharedBuffer>& buffer) {
  std::lock_guard lock(mutex_);
  regions_.push_back({buffer->data(), buffer->size(), next_, buffer});
  return next_++;
}

SharedRegion RegionTable::Find(const std::byte* at, size_t bytes) const {
  std::lock_guard lock(mutex_);
  for (const Region& region : regions_) {
    if (at < region.data || at + bytes > region.data + region.size) continue;
    if (auto buffer = region.buffer.lock()) return {std::move(buffer), region.id};
  }
  return {};
}

std::vector<uint32_t> RegionTable::TakeGone() {
  std::vector<uint32_t> gone;
  std::lock_guard lock(mutex_);
  std::erase_if(regions_, [&gone](const Region& region) {
    const bool expired = region.buffer.expired();
    if (expired) gone.push_back(region.id);
    return expired;
  });
  return gone;
}

std::vector<std::shared_ptr<SharedBuffer>> RegionTable::buffers() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<SharedBuffer>> buffers;
  buffers.reserve(regions_.size());
  for (const Region& region : regions_) buffers.push_back(region.buffer.lock());
  return buffers;
}

}  // namespace byteps_like
