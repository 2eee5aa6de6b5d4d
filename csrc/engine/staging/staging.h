// A partition's way between a device and the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "csrc/engine/coding/coding.h"
#include "csrc/engine/operation.h"
#include "csrc/gpu/gate.h"
#include "csrc/gpu/stream.h"

namespace byteps_like {

// The work that the user's stream held at a Submit; shared by that Submit's partitions.
struct UserWork {
  std::unique_ptr<GpuEvent> event;
  std::shared_ptr<GpuGate> gate;  // the operation's, until it has begun
  // Under the stager's mutex, once it has begun:
  const void* thread = nullptr;  // the thread that recorded it,
  uint64_t stream = 0;           // and the stream: events that one thread records on one stream fire in that order
  uint64_t number = 0;           // this use of it
  uint32_t waiting = 0;          // partitions that have not been issued, nor have ended before
  bool fired = false;            // as of the last query
};

// The next step of a partition on its lane. A round is kDown, kUp or, where the GPU encodes, (kPrepare,) kEncode,
// (kFetch,) kDecode.
enum class StagingStage : uint8_t {
  kDown,     // the partition, uncompressed
  kPrepare,  // feedback; the prelude, on which all ranks have to agree, comes down
  kEncode,   // feedback, if that is the first; the payload comes down, or its size
  kFetch,    // the payload, on the lane that encoded it: its size is known
  kUp,       // the result, uncompressed
  kDecode,   // the result comes up and is decoded
};

// Belongs to Submit, then to the stager, then (on the wire, or with the codec threads) to no thread, then to the
// stager.
struct Staging {
  explicit Staging(Part& of) : part(&of) {}
  Part* const part;
  bool active = false;  // its round is of a tensor on the device
  StagingStage stage = StagingStage::kDown;
  DevicePointer device = 0;  // the partition
  std::byte* mirror = nullptr;
  uint64_t order = 0;         // among those that have begun
  UserWork* start = nullptr;  // until its first stage is issued, or never will be

  bool ready() const { return start == nullptr || start->fired; }
  bool goes_up() const { return stage >= StagingStage::kUp; }
};

}  // namespace byteps_like
