// bitmap: csrc/cuda/sparse.cu.
#include <algorithm>

#include "compression/gpu/registry.h"
#include "compression/gpu/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kOfBitmapThread = 32;  // elements

class GpuBitmap : public GpuLossless {
 public:
  GpuBitmap(CodecPointer codec, KernelsOf& kernel)
      : GpuLossless(std::move(codec)), compact_(kernel), spread_(kernel("sparse_spread")) {}

  uint64_t Workspace(uint32_t numel) const override {
    Area area(0);
    const GpuCompact::Room room(area, numel);
    return area.end();
  }

  Status Prepare(Launcher& launcher, const GpuRound& round, DevicePointer prelude) const override {
    Launches launches(launcher);
    compact_.Mark(launches, round.x, round.numel, kAllButZeros, RoomOf(round, prelude));
    return launches.status();
  }

  // A zero where there is nothing to send.
  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    const GpuCompact::Room room = RoomOf(round, round.agreed);
    Launches launches(launcher);
    launches.Zero(payload, sizeof(float));
    compact_.Count(launches, round.agreed, round.numel, room);
    compact_.Offset(launches, round.numel, kAllButZeros, {.each = 4, .bytes = BytesOf(round)}, room);
    compact_.Emit(launches, round.x, round.numel, kAllButZeros, room, GpuCompact::What::kValues, payload);
    return launches.status();
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    const GpuCompact::Room room = RoomOf(round, round.agreed);
    Launches launches(launcher);
    compact_.Count(launches, round.agreed, round.numel, room);
    compact_.Offset(launches, round.numel, kAllButZeros, {.each = 4}, room);
    launches.Over(round.numel, kOfBitmapThread, spread_, round.agreed, round.numel, room.above, room.total, result,
                  bytes, factor, round.x, CorruptOf(round));
    return launches.status();
  }

 private:
  // With the bits where they are wanted.
  static GpuCompact::Room RoomOf(const GpuRound& round, DevicePointer mask) {
    Area area(round.workspace);
    GpuCompact::Room room(area, round.numel);
    room.mask = mask;
    return room;
  }

  const GpuCompact compact_;
  const KernelHandle spread_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuBitmap(const CodecPointer& codec, CodecSpec&, const KernelTable& kernels) {
  return MakeTwin<GpuBitmap>(kernels, codec);
}

}  // namespace byteps_like
