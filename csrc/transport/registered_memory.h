// The process's long-lived memory that the data path reads and writes: arenas and other shared buffers, what servers
// sum in, pools of payloads. A device that must know memory before it moves it (RDMA) looks a place up here, registers
// the region it lies in whole at its first use, and forgets it when it is told that it goes. Memory that isn't here may
// be unmapped at any time: such a device copies it. Nothing here costs anything on the data path of other transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace byteps_like {

inline constexpr size_t kLeastRegistered = 64u << 10;  // what is smaller is copied sooner than registered

struct MemoryRegion {
  std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t id = 0;  // never used again
};

// In the registry while this lives. Thread-safe.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  // The memory must stay mapped until this is destroyed. It may overlap no other region; nothing if `bytes` is 0.
  RegisteredMemory(std::byte* data, size_t bytes);
  // Blocks until all watchers have let go of it. No link may be reading or writing it any more.
  ~RegisteredMemory();
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;

 private:
  MemoryRegion region_;
};

// The region in which all of [data, data + bytes) lies. Any thread; takes a lock: cache the answer until
// MemoryGeneration changes.
std::optional<MemoryRegion> FindMemory(const std::byte* data, size_t bytes);

// Grows whenever a region comes or goes. Any thread; one load.
uint64_t MemoryGeneration();

// Whoever keeps something about regions. Told on the thread that destroys the region, before it can be unmapped;
// FindMemory does not find it any more. Must not block for long, nor call what is declared here.
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
