#include "csrc/engine/staging/pinned_pool.h"

#include <algorithm>
#include <string>

namespace byteps_like {
namespace {

constexpr size_t kSlab = 4 << 20;  // bytes that are page-locked at once: to lock many small ones takes long

}  // namespace

Status PinnedPool::Reserve(std::span<const size_t> sizes) {
  std::lock_guard growing(growing_);
  std::vector<size_t> missing;
  size_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    for (const size_t asked : sizes) {
      const size_t size = BufferPool::Rounded(asked);
      if (--sizes_[size].spare >= 0) continue;
      missing.push_back(size);
      bytes += size;
    }
  }
  const size_t left = slabs_.empty() ? 0 : slabs_.back()->bytes() - used_;
  if (bytes > left) {
    auto memory = SharedBuffer::Create(std::max(bytes, kSlab));
    auto slab = memory.ok() ? PinnedMemory::Lock(gpu_, *memory) : memory.status();
    if (!slab.ok()) {
      Release(sizes);
      return slab.status();
    }
    slabs_.push_back(std::move(*slab));
    used_ = 0;
  }
  std::lock_guard lock(mutex_);
  for (const size_t size : missing) {
    ++sizes_[size].spare;
    sizes_[size].free.push_back(slabs_.back()->data() + std::exchange(used_, used_ + size));
  }
  return Status();
}

void PinnedPool::Release(std::span<const size_t> sizes) {
  std::lock_guard lock(mutex_);
  for (const size_t size : sizes) ++sizes_[BufferPool::Rounded(size)].spare;
}

Result<PooledBuffer> PinnedPool::Take(size_t bytes) {
  const size_t size = BufferPool::Rounded(bytes);
  std::lock_guard lock(mutex_);
  const auto found = sizes_.find(size);
  if (found == sizes_.end() || found->second.free.empty())
    return Status(Code::kInvalid, std::to_string(bytes) + " bytes of page-locked memory that nobody has reserved");
  std::byte* const data = found->second.free.back();
  found->second.free.pop_back();
  return PooledBuffer{data, size};
}

void PinnedPool::Give(PooledBuffer& buffer) {
  const PooledBuffer given = std::exchange(buffer, {});
  if (given.data == nullptr) return;
  std::lock_guard lock(mutex_);
  sizes_[given.bytes].free.push_back(given.data);
}

}  // namespace byteps_like
