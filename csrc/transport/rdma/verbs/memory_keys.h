// Keys of long-lived memory: each region of registered_memory.h is registered once per device, whole, when it is first
// used, and deregistered when it is destroyed. Memory outside these regions has no key and is copied
// (docs/decisions/0034).
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "csrc/transport/memory/registered_memory.h"
#include "csrc/transport/rdma/verbs/device.h"

namespace byteps_like::rdma {

// The registrations of one device. Any thread.
class Registrations final : private MemoryWatcher {
 public:
  static Registrations& Of(const Device& device);  // for ever

  // Registers the region if need be. False if the device can't: said once per region in the log.
  bool Find(const MemoryRegion& region, KeyPair* keys);

 private:
  explicit Registrations(const Device& device) : device_(device) { StartWatching(); }
  ~Registrations() override { StopWatching(); }
  void OnMemoryGone(uint64_t id) override;

  const Device& device_;
  std::mutex mutex_;
  std::map<uint64_t, Registration> by_id_;
};

// How a link may use a place.
struct PlaceKeys {
  const DeviceKeys* keys = nullptr;  // nullptr: some of it is not in registered memory, or a device can't register it
  bool foreign = false;              // memory of another device (a GPU): the processor must not touch it
};

// The keys of a place for the devices of one connection, with a memory of where it found the last few. One thread.
class MemoryKeys {
 public:
  // One per device of the connection, in its order.
  explicit MemoryKeys(const std::vector<const Device*>& devices);

  PlaceKeys Find(const std::byte* data, size_t bytes);  // valid until the next call

 private:
  struct Known {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    bool foreign = false;
    DeviceKeys keys;
  };

  std::vector<Registrations*> devices_;
  std::array<Known, 8> known_;
  size_t oldest_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace byteps_like::rdma
