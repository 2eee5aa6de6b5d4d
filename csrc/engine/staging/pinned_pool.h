// Page-locked memory for what has no place in a mirror: preludes, payloads that may be longer than the partition,
// results of merged rounds. Callers reserve it before anything could wait for it. The stager takes it and gives it back
// without calling the driver, because page-locking memory may wait for all streams of the device, including those that
// wait for the stager. Never unlocked before the pool is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/buffer_pool.h"
#include "csrc/gpu/memory.h"

namespace byteps_like {

// Thread-safe. The pool must outlive its buffers.
class PinnedPool {
 public:
  explicit PinnedPool(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  PinnedPool(const PinnedPool&) = delete;

  // Buffers of these sizes can be taken beside all that were reserved before. Calls the driver, and may block.
  Status Reserve(std::span<const size_t> sizes);
  void Release(std::span<const size_t> sizes);  // they are not needed any more: the next Reserve may have them
  // At least so long; its contents are undefined. kInvalid: of such a size all that were reserved are taken.
  Result<PooledBuffer> Take(size_t bytes);
  void Give(PooledBuffer& buffer);  // which is none then

 private:
  struct Size {
    int64_t spare = 0;  // buffers that there are beyond those that are reserved
    std::vector<std::byte*> free;
  };

  const std::shared_ptr<Gpu> gpu_;
  std::mutex growing_;  // held while the driver is called; guards the members below
  std::vector<std::unique_ptr<PinnedMemory>> slabs_;
  size_t used_ = 0;   // of the last one
  std::mutex mutex_;  // never held while the driver is called: its host functions give buffers back
  std::map<size_t, Size> sizes_;
};

}  // namespace byteps_like
