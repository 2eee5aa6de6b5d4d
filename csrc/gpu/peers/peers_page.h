// A page of memory that the ranks of one host share, where the streams of each tell the others' how far they have come:
// one word per rank and lane, which only ever grows, written and waited for by the devices themselves. And whether each
// rank is still there, for the hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "csrc/gpu/memory.h"
#include "csrc/gpu/peers/peers.h"

namespace byteps_like {

enum class PeerState : uint32_t { kHere = 0, kLeft = 1, kFailed = 2 };

// Thread-safe. Ranks are those of the host, from 0.
class PeersPage {
 public:
  static constexpr size_t kBytes = 4096;
  static constexpr uint32_t kMostRanks = GpuPeerSum::kMostSources;
  static constexpr uint32_t kLanes = 2;

  // Page-locks it. `buffer` was zero-filled by its maker. kInvalid: it is too short.
  static Result<std::unique_ptr<PeersPage>> Create(std::shared_ptr<Gpu> gpu, std::shared_ptr<SharedBuffer> buffer);

  PeerState state(uint32_t rank) const;
  void set_state(uint32_t rank, PeerState state);

  // The number of the last meeting that the rank's stream has come to, and its place for the device.
  uint32_t step(uint32_t lane, uint32_t rank) const;
  cuda::DeviceAddress address(uint32_t lane, uint32_t rank) const;
  // By the host, in a rank's place: who waits for it goes on.
  void set_step(uint32_t lane, uint32_t rank, uint32_t step);

 private:
  PeersPage(std::unique_ptr<PinnedMemory> page, cuda::DeviceAddress begin) : page_(std::move(page)), begin_(begin) {}
  uint32_t* At(size_t line) const;
  const std::unique_ptr<PinnedMemory> page_;
  const cuda::DeviceAddress begin_;
};

}  // namespace byteps_like
