// coo: csrc/cuda/sparse.cu.
#include <algorithm>

#include "compression/gpu/registry.h"
#include "compression/gpu/sparse.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

class GpuCoo : public GpuLossless {
 public:
  GpuCoo(CodecPointer codec, KernelsOf& kernel) : GpuLossless(std::move(codec)), compact_(kernel), scatter_(kernel) {}

  uint64_t Workspace(uint32_t numel) const override {
    Area area(0);
    const GpuCompact::Room room(area, numel);
    return area.end();
  }

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    Area area(round.workspace);
    const GpuCompact::Room room(area, round.numel);
    Launches launches(launcher);
    compact_.Mark(launches, round.x, round.numel, kAllButZeros, room);
    // With more, indices and values would take more than all elements.
    compact_.Offset(launches, round.numel, kAllButZeros,
                    {.most = round.numel / 2, .head = payload, .bytes = BytesOf(round)}, room);
    compact_.Emit(launches, round.x, round.numel, kAllButZeros, room, GpuCompact::What::kBoth, payload + kHead);
    return launches.status();
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, std::max(bytes, kHead));
    if (!right.ok()) return right;
    Launches launches(launcher);
    scatter_.Decode(launches, round, result, bytes, kInHead, kAnyNumber, factor);
    return launches.status();
  }

 private:
  const GpuCompact compact_;
  const GpuScatter scatter_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuCoo(const CodecPointer& codec, CodecSpec&, const KernelTable& kernels) {
  return MakeTwin<GpuCoo>(kernels, codec);
}

}  // namespace byteps_like
