// A partition's way between a device and the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "csrc/engine/coding.h"
#include "csrc/engine/operation.h"
#include "csrc/gpu/gate.h"
#include "csrc/gpu/stream.h"

namespace byteps_like {

// What the user's stream held at a Submit; shared by the partitions of it.
struct UserWork {
  std::unique_ptr<GpuEvent> event;
  std::shared_ptr<GpuGate> gate;  // the operation's, until it has begun
  uint32_t waiting = 0;           // partitions that have not been issued. Under the stager's mutex
};

// What is done next, on a lane. A round is kDown, kUp; or, where the GPU encodes, (kPrepare,) kEncode, (kFetch,)
// kDecode.
enum class StagingStage : uint8_t {
  kDown,     // the partition as it is
  kPrepare,  // feedback; what all ranks have to agree on comes down
  kEncode,   // feedback, if that is the first; the payload comes down, or its size
  kFetch,    // the payload, on the lane that encoded it: its size is known
  kUp,       // the result as it is
  kDecode,   // the result comes up and is decoded
};

// Belongs to Submit, then to the stager, then (on the wire, or with the codec threads) to nobody, then to the stager.
struct Staging {
  explicit Staging(Part& of) : part(&of) {}
  Part* const part;
  bool active = false;  // its round is of a tensor on the device
  StagingStage stage = StagingStage::kDown;
  DevicePointer device = 0;  // the partition
  std::byte* mirror = nullptr;
  UserWork* start = nullptr;  // until its first stage is issued

  bool goes_up() const { return stage >= StagingStage::kUp; }
};

}  // namespace byteps_like
