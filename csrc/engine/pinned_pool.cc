#include "csrc/engine/pinned_pool.h"

#include <algorithm>

namespace byteps_like {
namespace {

constexpr size_t kSlab = 4 << 20;  // bytes that are page-locked at once: to lock many small ones takes long

}  // namespace

Result<PooledBuffer> PinnedPool::Take(size_t bytes) {
  const size_t size = BufferPool::Rounded(bytes);
  {
    std::lock_guard lock(mutex_);
    auto& buffers = free_[size];
    if (!buffers.empty()) {
      std::byte* const data = buffers.back();
      buffers.pop_back();
      return PooledBuffer{data, size};
    }
  }
  if (slabs_.empty() || used_ + size > slabs_.back()->bytes()) {
    const Status status = Grow(size);
    if (!status.ok()) return status;
  }
  std::byte* const data = slabs_.back()->data() + used_;
  used_ += size;
  return PooledBuffer{data, size};
}

Status PinnedPool::Grow(size_t bytes) {
  auto memory = SharedBuffer::Create(std::max(bytes, kSlab));
  if (!memory.ok()) return memory.status();
  auto slab = PinnedMemory::Lock(gpu_, *memory);
  if (!slab.ok()) return slab.status();
  slabs_.push_back(std::move(*slab));
  used_ = 0;
  return Status();
}

void PinnedPool::Give(PooledBuffer& buffer) {
  const PooledBuffer given = std::exchange(buffer, {});
  if (given.data == nullptr) return;
  std::lock_guard lock(mutex_);
  free_[given.bytes].push_back(given.data);
}

}  // namespace byteps_like
