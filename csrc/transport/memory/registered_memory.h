// The process's long-lived memory that the data path reads and writes: arenas and other shared buffers, servers'
// accumulators, pools of payloads. A device that must register memory before it moves it (RDMA) looks a place up here,
// registers its whole region at the first use, and forgets it when told that the region will be destroyed. Memory that
// isn't here may be unmapped at any time, so such a device copies it. Nothing here costs anything on the data path of
// other transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "csrc/base/fd.h"

namespace byteps_like {

inline constexpr size_t kLeastRegistered = 64u << 10;  // smaller regions are cheaper to copy than to register

// Memory of another device (a GPU), as its driver lends it to devices that map it themselves. The processor can't read
// it at its address.
struct DmaBuf {
  Fd fd;
  uint64_t offset = 0;  // of the region in it
};

struct MemoryRegion {
  std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t id = 0;   // never used again
  int dma_buf = -1;  // of memory of another device; open as long as the region exists
  uint64_t dma_buf_offset = 0;
};

// In the registry while this lives. Thread-safe.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  // The memory must stay mapped until this is destroyed. It may overlap no other region; nothing if `bytes` is 0.
  RegisteredMemory(std::byte* data, size_t bytes);
  // The same for another device's memory. Links don't send from it, and it is not offered to peers, because links copy
  // short payloads and those that must be kept.
  RegisteredMemory(std::byte* data, size_t bytes, DmaBuf dma_buf);
  // Blocks until all watchers have let go of it. No link may be reading or writing it any more.
  ~RegisteredMemory();
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;

 private:
  void Enter(MemoryRegion region);
  MemoryRegion region_;
  Fd dma_buf_;
};

// The region in which all of [data, data + bytes) lies. Any thread; takes a lock: cache the answer until
// MemoryGeneration changes.
std::optional<MemoryRegion> FindMemory(const std::byte* data, size_t bytes);

// Grows whenever a region comes or goes. Any thread; one load.
uint64_t MemoryGeneration();

// For objects that keep something per region. Called on the thread that destroys the region, before it is unmapped and
// when FindMemory no longer finds it. Must not block for long, and must not call functions of this header.
class MemoryWatcher {
 public:
  MemoryWatcher() = default;
  virtual ~MemoryWatcher() { StopWatching(); }  // of the most derived class, first: StopWatching
  MemoryWatcher(const MemoryWatcher&) = delete;

  virtual void OnMemoryGone(uint64_t id) = 0;

 protected:
  void StartWatching();  // the most derived class, when it is made
  void StopWatching();   // no call is under way any more, and none follows; idempotent
};

}  // namespace byteps_like
