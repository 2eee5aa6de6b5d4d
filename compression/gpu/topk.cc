// topk: csrc/cuda/sparse.cu.
#include <algorithm>

#include "compression/gpu/registry.h"
#include "compression/gpu/sparse.h"

namespace byteps_like {
namespace {

class GpuTopK : public GpuCodec {
 public:
  GpuTopK(CodecPointer codec, double ratio, bool sampled, KernelsOf& kernel)
      : GpuCodec(std::move(codec)),
        ratio_(ratio),
        sampled_(sampled),
        select_(kernel),
        compact_(kernel),
        scatter_(kernel) {}

  uint64_t Workspace(uint32_t numel) const override {
    Area area(0);
    const Rooms rooms(area, numel, sampled_);
    return area.end();
  }
  bool varies() const override { return sampled_; }

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    Area area(round.workspace);
    const Rooms rooms(area, round.numel, sampled_);
    Launches launches(launcher);
    const uint32_t k = Wanted(round.numel);
    if (sampled_)
      select_.About(launches, round.x, round.numel, k, rooms.select);
    else
      select_.Largest(launches, round.x, round.numel, k, rooms.select);
    const DevicePointer selection = rooms.select.selection;
    compact_.Mark(launches, round.x, round.numel, selection, rooms.compact);
    compact_.Offset(launches, round.numel, selection,
                    {.head = sampled_ ? payload : kNowhere, .bytes = sampled_ ? BytesOf(round) : kNowhere},
                    rooms.compact);
    compact_.Emit(launches, round.x, round.numel, selection, rooms.compact, GpuCompact::What::kBoth, payload + Head());
    return launches.status();
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                  DevicePointer residual) const override {
    Launches launches(launcher);
    launches.Copy(residual, round.x, size_t{round.numel} * sizeof(float));
    scatter_.Add(launches, payload, Known(round.numel), Most(round.numel), -1.0f, residual);
    return launches.status();
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, sampled_ ? std::max(bytes, Head()) : 8 * Wanted(round.numel));
    if (!right.ok()) return right;
    Launches launches(launcher);
    scatter_.Decode(launches, round, result, bytes, Known(round.numel), Most(round.numel), factor);
    return launches.status();
  }

 private:
  struct Rooms {
    Rooms(Area& area, uint32_t numel, bool sampled) : select(area, numel, sampled), compact(area, numel) {}
    GpuSelect::Room select;
    GpuCompact::Room compact;
  };

  uint32_t Head() const { return sampled_ ? 4 : 0; }
  uint32_t Wanted(uint32_t numel) const { return std::max(1u, static_cast<uint32_t>(ratio_ * numel)); }
  uint32_t Most(uint32_t numel) const { return (twin().Plan(numel).payload - Head()) / 8; }
  uint32_t Known(uint32_t numel) const { return sampled_ ? kInHead : Wanted(numel); }

  const double ratio_;
  const bool sampled_;
  const GpuSelect select_;
  const GpuCompact compact_;
  const GpuScatter scatter_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuTopK(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  const bool sampled = spec.Word("select", {"exact", "sampled"}) == "sampled";
  return MakeTwin<GpuTopK>(kernels, codec, spec.Real("ratio", 0, 1), sampled);
}

}  // namespace byteps_like
