// A codec's worker half on a GPU: the same payload, bit for bit, made and read by kernels (csrc/cuda) on memory of the
// device. Mirrors Codec; compression/gpu/registry.h makes them.
//
// Immutable and thread-safe. Every call only launches, on the launcher's stream, and returns: what it is given has to
// stay until the stream has come by. Nothing is allocated on the device, nothing synchronised. Memory: partitions and
// residuals are aligned to 4 bytes, everything else to 16, and the same arrays or disjoint ones.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/codec/codec.h"
#include "csrc/gpu/launcher.h"

namespace byteps_like {

// What kernels report about a round besides its bytes. In memory that the device can write to; zeroed by the owner of
// the round before Encode and before Decode, and read when the stream has passed.
struct GpuReport {
  uint32_t bytes = 0;    // of the payload, of codecs whose payloads vary
  uint32_t corrupt = 0;  // not 0: Decode refuses the result; what is in `out` means nothing
};

// One round of one partition, as its calls see it.
struct GpuRound {
  DevicePointer x = 0;  // the partition: floats. Decode's `out`
  uint32_t numel = 0;   // at least 1
  Draw draw;
  DevicePointer agreed = 0;     // the prelude as reduced; 0: the codec has none
  DevicePointer workspace = 0;  // GpuCodec::Workspace bytes, kept from Encode to Residual
  DevicePointer report = 0;     // a GpuReport
};

class GpuCodec {
 public:
  explicit GpuCodec(std::shared_ptr<const Codec> twin) : twin_(std::move(twin)) {}
  virtual ~GpuCodec() = default;
  GpuCodec(const GpuCodec&) = delete;
  GpuCodec& operator=(const GpuCodec&) = delete;

  const Codec& twin() const { return *twin_; }  // on the CPU: what it says of sizes and preludes holds here

  // Bytes of device memory for the calls below.
  virtual uint64_t Workspace(uint32_t /*numel*/) const { return 0; }
  // Whether Encode reports the payload's bytes; else they are twin().Plan().payload.
  virtual bool varies() const { return false; }

  // As Codec's. `prelude`: twin().Plan().prelude bytes. Not called if there is none.
  virtual Status Prepare(Launcher& launcher, const GpuRound& round, DevicePointer prelude) const;
  // `payload`: twin().Plan().payload bytes.
  virtual Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const = 0;
  // `payload`, just made from round.x; `residual` may be round.x.
  virtual Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                          DevicePointer residual) const = 0;
  // A result of `count` contributions and any bytes, which is `bytes` long: kCorrupt at once if it can't be; kernels
  // bound what they read of it, and report what is wrong in it. round.x gets factor * the sum.
  virtual Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t count,
                        float factor) const = 0;

  // For metrics, as Codec's: adds to the u32 at `found` how many elements the codec cuts off.
  virtual Status Clamped(Launcher& launcher, const GpuRound& round, DevicePointer found) const;

 protected:
  // kCorrupt unless it is `expected` bytes long.
  Status CheckLength(uint32_t bytes, uint32_t expected) const;

 private:
  const std::shared_ptr<const Codec> twin_;
};

}  // namespace byteps_like
