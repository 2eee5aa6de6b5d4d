// Memory that runs borrow: scratch of schedules. Blocks are powers of two; the last one given back is the first one
// lent, since it is still in the cache. They are long-lived, and registered as such. Loop thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "csrc/transport/memory/registered_memory.h"

namespace byteps_like {

struct ScratchBlock {
  std::byte* data = nullptr;  // page-aligned; nullptr: none
  uint8_t log2 = 0;           // of its bytes
};

class ScratchPool {
 public:
  ScratchPool() = default;
  ScratchPool(const ScratchPool&) = delete;
  ~ScratchPool();

  ScratchBlock Take(uint64_t bytes);  // at least as many; no block if there is no memory
  void Give(ScratchBlock& block);     // empties it; does nothing if it is empty
  uint64_t idle_bytes() const { return idle_bytes_; }

 private:
  static constexpr uint64_t kMostIdle = 256u << 20;  // kept for later runs; the rest goes back to the system

  void Free(std::byte* data);

  std::array<std::vector<std::byte*>, 64> idle_;
  std::unordered_map<std::byte*, RegisteredMemory> registered_;
  uint64_t idle_bytes_ = 0;
};

}  // namespace byteps_like
