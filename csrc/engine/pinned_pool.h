// Page-locked memory for what has no place in a mirror: preludes, payloads that may be longer than the partition,
// results of merged rounds. Taken and given back, never unlocked before the pool goes.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/buffer_pool.h"
#include "csrc/gpu/memory.h"

namespace byteps_like {

// The pool must outlive its buffers.
class PinnedPool {
 public:
  explicit PinnedPool(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  PinnedPool(const PinnedPool&) = delete;

  // One thread's: at least so long; its contents are undefined. Calls the driver where the pool has to grow.
  Result<PooledBuffer> Take(size_t bytes);
  // Any thread, the driver's too: it waits for none. The buffer is none then.
  void Give(PooledBuffer& buffer);

 private:
  Status Grow(size_t bytes);

  const std::shared_ptr<Gpu> gpu_;
  std::vector<std::unique_ptr<PinnedMemory>> slabs_;
  size_t used_ = 0;  // of the last one
  std::mutex mutex_;
  std::map<size_t, std::vector<std::byte*>> free_;  // by size
};

}  // namespace byteps_like
