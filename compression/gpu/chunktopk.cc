// chunktopk: csrc/cuda/sparse.cu.
#include <algorithm>

#include "compression/gpu/registry.h"
#include "compression/gpu/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kSumLanes = 16;           // threads of a chunk
constexpr uint32_t kOfChunkTopKThread = 32;  // elements

class GpuChunkTopK : public GpuCodec {
 public:
  GpuChunkTopK(CodecPointer codec, uint32_t chunk, KernelsOf& kernel)
      : GpuCodec(std::move(codec)),
        chunk_(chunk),
        select_(kernel),
        compact_(kernel),
        norms_(kernel("sparse_norms")),
        gather_(kernel("sparse_gather_chunks")),
        scatter_(kernel("sparse_scatter_chunks")) {}

  uint64_t Workspace(uint32_t numel) const override {
    Area area(0);
    const Rooms rooms(area, RowsOf(numel));
    return area.end();
  }

  Status Prepare(Launcher& launcher, const GpuRound& round, DevicePointer prelude) const override {
    const uint32_t chunks = RowsOf(round.numel).chunks;
    return Launches(launcher)
        .Over(uint64_t{chunks} * kSumLanes, 1, norms_, round.x, round.numel, chunk_, chunks, prelude)
        .status();
  }

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    const Rows rows = RowsOf(round.numel);
    Launches launches(launcher);
    const DevicePointer chosen = Choose(launches, round, rows);
    launches.Over(rows.elements(), kOfChunkTopKThread, gather_, round.x, round.numel, chosen, rows.chosen, chunk_,
                  rows.width, payload);
    return launches.status();
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer, DevicePointer residual) const override {
    const Rows rows = RowsOf(round.numel);
    Area area(round.workspace);
    const DevicePointer chosen = Rooms(area, rows).chosen;  // by Encode
    Launches launches(launcher);
    launches.Copy(residual, round.x, size_t{round.numel} * sizeof(float));
    Scatter(launches, rows, kNowhere, chosen, 0, residual, round.numel);
    return launches.status();
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, twin().Plan(round.numel).payload);
    if (!right.ok()) return right;
    const Rows rows = RowsOf(round.numel);
    Launches launches(launcher);
    const DevicePointer chosen = Choose(launches, round, rows);
    launches.Zero(round.x, size_t{round.numel} * sizeof(float));
    Scatter(launches, rows, result, chosen, factor, round.x, round.numel);
    return launches.status();
  }

 private:
  struct Rows {  // of the payload
    uint64_t elements() const { return uint64_t{chosen} * width; }
    uint32_t chunks, chosen, width;
  };
  struct Rooms {
    Rooms(Area& area, const Rows& rows)
        : select(area, rows.chunks, false), compact(area, rows.chunks), chosen(area.Words(rows.chosen)) {}
    GpuSelect::Room select;
    GpuCompact::Room compact;
    DevicePointer chosen;
  };

  Rows RowsOf(uint32_t numel) const {
    const CodecPlan plan = twin().Plan(numel);
    const uint32_t width = std::min(chunk_, numel);
    return {.chunks = plan.prelude / 4, .chosen = plan.payload / 4 / width, .width = width};
  }

  // The numbers of the chunks whose norms are the largest.
  DevicePointer Choose(Launches& launches, const GpuRound& round, const Rows& rows) const {
    Area area(round.workspace);
    const Rooms rooms(area, rows);
    const DevicePointer selection = rooms.select.selection;
    select_.Largest(launches, round.agreed, rows.chunks, rows.chosen, rooms.select);
    compact_.Mark(launches, round.agreed, rows.chunks, selection, rooms.compact);
    compact_.Offset(launches, rows.chunks, selection, {}, rooms.compact);
    compact_.Emit(launches, round.agreed, rows.chunks, selection, rooms.compact, GpuCompact::What::kIndices,
                  rooms.chosen);
    return rooms.chosen;
  }

  void Scatter(Launches& launches, const Rows& rows, DevicePointer values, DevicePointer chosen, float factor,
               DevicePointer out, uint32_t numel) const {
    launches.Over(rows.elements(), kOfChunkTopKThread, scatter_, values, chosen, rows.chosen, chunk_, rows.width,
                  factor, out, numel);
  }

  const uint32_t chunk_;
  const GpuSelect select_;
  const GpuCompact compact_;
  const KernelHandle norms_, gather_, scatter_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuChunkTopK(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  const auto chunk = static_cast<uint32_t>(spec.Integer("chunk", 1, int64_t{1} << 20));
  return MakeTwin<GpuChunkTopK>(kernels, codec, chunk);
}

}  // namespace byteps_like
