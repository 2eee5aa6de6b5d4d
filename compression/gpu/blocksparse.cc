// blocksparse: csrc/cuda/blocksparse.cu.
#include <algorithm>
#include <cmath>

#include "compression/gpu/registry.h"
#include "compression/gpu/sparse.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kOfBlocksparseThread = 8;  // elements

class GpuBlockSparse : public GpuLossless {
 public:
  GpuBlockSparse(CodecPointer codec, uint32_t block, double dense, KernelsOf& kernel)
      : GpuLossless(std::move(codec)),
        block_(block),
        dense_(dense),
        scan_(kernel("blocksparse_scan")),
        index_(kernel("blocksparse_index")),
        gather_(kernel("blocksparse_gather")),
        check_(kernel("blocksparse_check")),
        spread_(kernel("blocksparse_spread")) {}

  uint64_t Workspace(uint32_t numel) const override {
    Area area(0);
    const Room room(area, Words(numel));
    return area.end();
  }

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    Area area(round.workspace);
    const Room room(area, Words(round.numel));
    // As many as `dense` of them are not too many.
    const auto most = static_cast<uint32_t>(std::floor(dense_ * Rounded(round.numel, block_)));
    return Launches(launcher)
        .Over(uint64_t{Words(round.numel)} * kBlockThreads, 1, scan_, round.x, round.numel, block_, payload + kHead)
        .With(kLargeBlock, index_, round.numel, block_, most, payload, room.ranks, room.total, BytesOf(round))
        .Over(round.numel, kOfBlocksparseThread, gather_, round.x, round.numel, block_, room.ranks, room.total, payload)
        .status();
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, std::max(bytes, kHead));
    if (!right.ok()) return right;
    Area area(round.workspace);
    const Room room(area, Words(round.numel));
    return Launches(launcher)
        .With(kLargeBlock, check_, result, bytes, round.numel, block_, room.ranks, room.total, CorruptOf(round))
        .Over(round.numel, kOfBlocksparseThread, spread_, result, round.numel, block_, room.ranks, room.total,
              CorruptOf(round), factor, round.x)
        .status();
  }

 private:
  struct Room {
    Room(Area& area, uint32_t words) : ranks(area.Words(words)), total(area.Words(1)) {}
    DevicePointer ranks, total;
  };

  uint32_t Words(uint32_t numel) const { return WordsOf(Rounded(numel, block_)); }  // of the bitmap

  const uint32_t block_;
  const double dense_;
  const KernelHandle scan_, index_, gather_, check_, spread_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuBlockSparse(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  const auto block = static_cast<uint32_t>(spec.Integer("block", 1, int64_t{1} << 20));
  return MakeTwin<GpuBlockSparse>(kernels, codec, block, spec.Real("dense", 0, 1));
}

}  // namespace byteps_like
