// Device memory of a stager's lanes: payloads, preludes, and workspace of kernels. It grows by new blocks beside those
// in use, and is freed only with the stager, because cuMemFree waits for all streams of the device, including those
// that wait for the stager, and cuMemAlloc may do so.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/gpu/launcher.h"
#include "csrc/gpu/memory.h"

namespace byteps_like {

// Thread-safe.
class Scratch {
 public:
  explicit Scratch(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  Scratch(const Scratch&) = delete;

  uint32_t AddLane() { return lanes_++; }  // all of them before the first Reserve; its number
  // Each lane has so much, or more. Callers': it calls the driver, and may block.
  Status Reserve(size_t bytes);
  // Where that of the lane begins; calls no driver. Another place after a larger Reserve; this one stays.
  DevicePointer Of(uint32_t lane) const;

 private:
  struct Block {
    std::unique_ptr<GpuMemory> memory;
    size_t each = 0;
  };
  const std::shared_ptr<Gpu> gpu_;
  uint32_t lanes_ = 0;
  std::mutex growing_;        // held while the driver is called; guards the members below
  std::deque<Block> blocks_;  // together at most twice the last
  std::atomic<const Block*> last_{nullptr};
};

}  // namespace byteps_like
