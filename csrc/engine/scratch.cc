#include "csrc/engine/scratch.h"

#include <algorithm>

namespace byteps_like {
namespace {

constexpr size_t kScratchAlignment = 256;

}  // namespace

Status Scratch::Reserve(size_t bytes) {
  std::lock_guard lock(growing_);
  const Block* const last = last_;
  if (last != nullptr && last->each >= bytes) return Status();
  const size_t twice = last == nullptr ? 0 : 2 * last->each;
  const size_t each = (std::max(bytes, twice) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  auto memory = GpuMemory::Allocate(gpu_, each * lanes_);
  if (!memory.ok()) return memory.status();
  blocks_.push_back({std::move(*memory), each});
  last_ = &blocks_.back();
  return Status();
}

DevicePointer Scratch::Of(uint32_t lane) const {
  const Block* const last = last_;
  return last == nullptr ? 0 : last->memory->address() + lane * last->each;
}

}  // namespace byteps_like
