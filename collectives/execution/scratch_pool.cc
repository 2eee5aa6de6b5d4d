#include "collectives/execution/scratch_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace byteps_like {
namespace {

constexpr uint64_t kLeast = 4096, kMost = uint64_t{1} << 48;

}  // namespace

ScratchPool::~ScratchPool() {
  for (auto& blocks : idle_) {
    for (std::byte* data : blocks) Free(data);
  }
}

void ScratchPool::Free(std::byte* data) {
  registered_.erase(data);
  std::free(data);
}

ScratchBlock ScratchPool::Take(uint64_t bytes) {
  if (bytes > kMost) return {};
  const uint64_t size = std::bit_ceil(std::max(bytes, kLeast));
  ScratchBlock block{nullptr, static_cast<uint8_t>(std::countr_zero(size))};
  auto& blocks = idle_[block.log2];
  if (blocks.empty()) {
    block.data = static_cast<std::byte*>(std::aligned_alloc(kLeast, size));
    const bool stays = size >= kLeastRegistered && size <= kMostIdle;
    if (block.data != nullptr && stays) registered_.emplace(block.data, RegisteredMemory(block.data, size));
  } else {
    block.data = blocks.back();
    blocks.pop_back();
    idle_bytes_ -= size;
  }
  return block;
}

void ScratchPool::Give(ScratchBlock& block) {
  if (block.data == nullptr) return;
  const uint64_t size = uint64_t{1} << block.log2;
  if (idle_bytes_ + size > kMostIdle) {
    Free(block.data);
  } else {
    idle_[block.log2].push_back(block.data);
    idle_bytes_ += size;
  }
  block = {};
}

}  // namespace byteps_like
