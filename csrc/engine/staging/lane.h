// A stream of the device with the memory that one partition needs while it is on it. It launches the kernels and copies
// of each stage (StagingStage). Issuing never waits for the device, and takes or frees no memory of the driver: callers
// reserve before what the rounds of a tensor need.
//
// Payloads land in the partition's own place in the mirror if they fit, else in page-locked memory of a pool. If only
// the device knows a payload's size and the payload can't be large, payload and size come down in one copy, of the
// largest possible size: asking first costs some 30 us, in which the link moves more. Otherwise the size comes first,
// then exactly the payload.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/scratch.h"
#include "csrc/engine/staging/pinned_pool.h"
#include "csrc/engine/staging/staging.h"
#include "csrc/gpu/feedback.h"
#include "csrc/gpu/stream_launcher.h"

namespace byteps_like {

// The memory that a round of a partition needs where the GPU encodes it: from the pool, until the round is over, and as
// scratch of its lane.
struct LaneNeeds {
  explicit LaneNeeds(const Coding& coding);
  std::vector<size_t> pinned;
  size_t scratch = 0;
};

// The resources that all lanes of an engine share.
struct LaneSupplies {
  explicit LaneSupplies(std::shared_ptr<Gpu> on) : gpu(std::move(on)), pool(gpu), scratch(gpu) {}

  const std::shared_ptr<Gpu> gpu;
  std::unique_ptr<GpuFeedbackKernels> feedback;  // nullptr: nothing is encoded
  PinnedPool pool;
  Scratch scratch;
  std::atomic<uint64_t> down{0}, up{0};                 // bytes copied: tensors, payloads, preludes
  std::atomic<uint64_t> encoded_in{0}, encoded_out{0};  // of what the device has encoded: before, after
};

class Lane {
 public:
  static Result<std::unique_ptr<Lane>> Create(LaneSupplies& supplies);
  ~Lane();
  Lane(const Lane&) = delete;

  // Everything of the staging's stage. The context is current. After a failure something of it may be on the stream.
  Status Issue(const Staging& staging);
  // `function(argument)` when all that was issued is done, on a thread of the driver's, which must not call it.
  Status Then(cuda::HostFunction function, void* argument);
  // After that: does the host's bookkeeping of the stage. kCorrupt: the result makes no sense. Doesn't call the driver.
  Status Land(const Staging& staging, uint32_t rank);
  // Whether the staging has to go on on this lane, to fetch a payload whose size has come.
  bool Asks(const Staging& staging) const;

  const GpuStream& stream() const { return *stream_; }

 private:
  Lane(LaneSupplies& supplies, std::unique_ptr<GpuStream> stream)
      : supplies_(supplies), stream_(std::move(stream)), number_(supplies.scratch.AddLane()) {}
  Status Down(const Staging& staging);
  Status Prepare(const Staging& staging);
  Status Encode(const Staging& staging);
  Status MakePayload(const Staging& staging);
  Status Fetch(const Staging& staging);
  Status Up(const Staging& staging);
  Status Decode(const Staging& staging);

  Status Place(const Staging& staging, uint32_t bytes);
  GpuRound RoundOf(const Staging& staging) const;
  Status Await(const Staging& staging);
  Status CopyDown(std::byte* to, DevicePointer from, size_t bytes);
  Status CopyUp(DevicePointer to, const std::byte* from, size_t bytes);
  Status CopyReport(const GpuRound& round);
  uint32_t PayloadOf(const Coding& coding) const;
  Status Seal(Part& part);
  Status Stamp(int64_t Lane::* stamp);
  void Trace(const Staging& staging, uint32_t rank) const;

  LaneSupplies& supplies_;
  const std::unique_ptr<GpuStream> stream_;
  const uint32_t number_;
  DevicePointer scratch_ = 0;  // of the stage, and of kFetch behind it: payload, prelude, workspace, report
  PooledBuffer report_;
  int64_t began_ = 0, coded_ = 0;  // while a timeline is recorded: set by host functions
};

// Gives back the round's page-locked memory that is not part of the mirror.
void GiveBack(const Staging& staging, PinnedPool& pool);

}  // namespace byteps_like
