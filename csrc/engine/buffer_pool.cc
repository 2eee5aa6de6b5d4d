#include "csrc/engine/buffer_pool.h"

#include <bit>
#include <new>
#include <utility>

namespace byteps_like {
namespace {

constexpr std::align_val_t kBufferAlignment{64};
constexpr size_t kLeast = 4096;

}  // namespace

// Eight to an octave.
size_t BufferPool::Rounded(size_t bytes) {
  if (bytes <= kLeast) return kLeast;
  const size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

BufferPool::~BufferPool() {
  registered_.clear();  // before the memory goes
  for (auto& [bytes, buffers] : free_)
    for (std::byte* data : buffers) ::operator delete(data, kBufferAlignment);
}

PooledBuffer BufferPool::Take(size_t bytes) {
  const size_t size = Rounded(bytes);
  {
    std::lock_guard lock(mutex_);
    auto& buffers = free_[size];
    if (!buffers.empty()) {
      std::byte* const data = buffers.back();
      buffers.pop_back();
      return {data, size};
    }
  }
  auto* const data = static_cast<std::byte*>(::operator new(size, kBufferAlignment));
  if (size >= kLeastRegistered) {
    std::lock_guard lock(mutex_);
    registered_.emplace_back(data, size);
  }
  return {data, size};
}

void BufferPool::Give(PooledBuffer& buffer) {
  const PooledBuffer given = std::exchange(buffer, {});
  if (given.data == nullptr) return;
  std::lock_guard lock(mutex_);
  free_[given.bytes].push_back(given.data);
}

}  // namespace byteps_like
