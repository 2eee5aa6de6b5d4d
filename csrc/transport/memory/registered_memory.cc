#include "csrc/transport/memory/registered_memory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace byteps_like {
namespace {

struct Registry {
  std::mutex mutex;  // guards the members below
  std::map<const std::byte*, MemoryRegion> regions;
  uint64_t last_id = 0;

  std::mutex watchers_mutex;  // held while they are told; never together with the other
  std::vector<MemoryWatcher*> watchers;

  std::atomic<uint64_t> generation{0};
};

// Never destroyed: buffers may outlive whatever is.
Registry& registry() {
  static auto* const only = new Registry;
  return *only;
}

}  // namespace

RegisteredMemory::RegisteredMemory(std::byte* data, size_t bytes) { Enter({.data = data, .bytes = bytes}); }

RegisteredMemory::RegisteredMemory(std::byte* data, size_t bytes, DmaBuf dma_buf) : dma_buf_(std::move(dma_buf.fd)) {
  Enter({.data = data, .bytes = bytes, .dma_buf = dma_buf_.get(), .dma_buf_offset = dma_buf.offset});
}

void RegisteredMemory::Enter(MemoryRegion region) {
  region_ = region;
  if (region.bytes == 0) return;
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  region_.id = ++all.last_id;
  all.regions[region_.data] = region_;
  all.generation.fetch_add(1, std::memory_order_release);
}

RegisteredMemory::~RegisteredMemory() {
  if (region_.id == 0) return;
  Registry& all = registry();
  {
    std::lock_guard lock(all.mutex);
    all.regions.erase(region_.data);
    all.generation.fetch_add(1, std::memory_order_release);
  }
  std::lock_guard lock(all.watchers_mutex);
  for (MemoryWatcher* watcher : all.watchers) watcher->OnMemoryGone(region_.id);
}

RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : region_(std::exchange(other.region_, {})), dma_buf_(std::move(other.dma_buf_)) {}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(region_, other.region_);
  std::swap(dma_buf_, other.dma_buf_);
  return *this;
}

std::optional<MemoryRegion> FindMemory(const std::byte* data, size_t bytes) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto next = all.regions.upper_bound(data);
  if (next == all.regions.begin()) return std::nullopt;
  const MemoryRegion& region = std::prev(next)->second;
  const auto offset = static_cast<size_t>(data - region.data);
  if (offset > region.bytes || bytes > region.bytes - offset) return std::nullopt;
  return region;
}

uint64_t MemoryGeneration() { return registry().generation.load(std::memory_order_acquire); }

void MemoryWatcher::StartWatching() {
  Registry& all = registry();
  std::lock_guard lock(all.watchers_mutex);
  all.watchers.push_back(this);
}

void MemoryWatcher::StopWatching() {
  Registry& all = registry();
  std::lock_guard lock(all.watchers_mutex);
  std::erase(all.watchers, this);
}

}  // namespace byteps_like
