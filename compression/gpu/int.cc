// int: csrc/cuda/int.cu.
#include <string>

#include "compression/gpu/launches.h"
#include "compression/gpu/registry.h"
#include "csrc/codec/random.h"

namespace byteps_like {
namespace {

constexpr uint32_t kIntTile = 512;      // elements that a warp takes at a time
constexpr uint32_t kIntStretch = 1024;  // and of which int_ranges finds the greatest

struct IntGrid {  // csrc/cuda/int.cu: Grid
  uint32_t numel, block, levels, is_stochastic, low, high;
};

struct IntOptions {
  uint32_t bits, block;  // block: 0: the partition
  bool is_stochastic;
  uint64_t seed;
};

struct IntKernels {
  KernelHandle ranges, encode, pack, unpack, spread;
};

constexpr uint32_t Parts(uint32_t count, uint32_t size) { return (count + size - 1) / size; }

// `warps` of them.
LaunchShape Warps(uint64_t warps) { return ShapeFor(warps * kWarpThreads, 1, kBlockThreads); }

class GpuInt : public GpuCodec {
 public:
  GpuInt(CodecPointer codec, const IntOptions& options, const IntKernels& kernels)
      : GpuCodec(std::move(codec)), options_(options), kernels_(kernels) {}

  // Blocks that no warp holds in its registers: their ranges are found before.
  uint64_t Workspace(uint32_t numel) const override {
    return is_shared() || Block(numel) <= kIntTile ? 0 : uint64_t{Blocks(numel)} * sizeof(float);
  }

  Status Prepare(Launcher& launcher, const GpuRound& round, DevicePointer prelude) const override {
    return Ranges(launcher, round, prelude);
  }

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    const uint32_t numel = round.numel;
    if (is_shared()) return Pack(launcher, round, round.agreed, payload, 0);
    const DevicePointer ranges = RangesOf(numel, payload);
    if (Block(numel) <= kIntTile)
      return launcher.Launch(kernels_.encode, Warps(Blocks(numel)), round.x, Grid(round), payload, ranges);
    const Status found = Ranges(launcher, round, round.workspace);
    return found.ok() ? Pack(launcher, round, round.workspace, payload, ranges) : found;
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                  DevicePointer residual) const override {
    const DevicePointer ranges = is_shared() ? round.agreed : RangesOf(round.numel, payload);
    return Unpack(launcher, round, payload, ranges, -1.0f, round.x, residual);
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t count,
                float factor) const override {
    Status right = CheckLength(bytes, twin().Plan(round.numel).result);
    if (!right.ok()) return right;
    if (!is_shared()) return Unpack(launcher, round, result, RangesOf(round.numel, result), factor, 0, round.x);
    return launcher.Launch(kernels_.spread, Tiles(round), result, levels() * count, round.agreed, Grid(round), factor,
                           round.x);
  }

 private:
  bool is_shared() const { return twin().trait() == Trait::kWidening; }
  uint32_t levels() const { return (1u << (options_.bits - 1)) - 1; }

  // Of a block that is the partition, rounded up to whole groups.
  uint32_t Block(uint32_t numel) const { return options_.block != 0 ? options_.block : Parts(numel, 128) * 128; }
  uint32_t Blocks(uint32_t numel) const { return Parts(numel, Block(numel)); }
  // Own scale: behind the numbers.
  DevicePointer RangesOf(uint32_t numel, DevicePointer payload) const {
    return payload + twin().Plan(numel).payload - Blocks(numel) * sizeof(float);
  }
  IntGrid Grid(const GpuRound& round) const {
    const Stream64 stream = StreamOf(options_.seed, round.draw, 0, false);
    return {round.numel, Block(round.numel), levels(), options_.is_stochastic, stream.low, stream.high};
  }

  static LaunchShape Tiles(const GpuRound& round) { return Warps(Parts(round.numel, kIntTile)); }

  Status Ranges(Launcher& launcher, const GpuRound& round, DevicePointer ranges) const {
    const uint32_t numel = round.numel, block = Block(numel), blocks = Blocks(numel);
    if (block > kIntStretch) {
      const Status zeroed = launcher.Fill(ranges, 0, blocks * sizeof(float));
      if (!zeroed.ok()) return zeroed;
    }
    const uint64_t stretches = uint64_t{blocks} * Parts(std::min(block, numel), kIntStretch);
    return launcher.Launch(kernels_.ranges, Warps(stretches), round.x, Grid(round), ranges);
  }

  Status Pack(Launcher& launcher, const GpuRound& round, DevicePointer known, DevicePointer numbers,
              DevicePointer ranges) const {
    return launcher.Launch(kernels_.pack, Tiles(round), round.x, Grid(round), known, numbers, ranges);
  }

  Status Unpack(Launcher& launcher, const GpuRound& round, DevicePointer numbers, DevicePointer ranges, float factor,
                DevicePointer base, DevicePointer out) const {
    return launcher.Launch(kernels_.unpack, Tiles(round), numbers, ranges, Grid(round), factor, base, out);
  }

  const IntOptions options_;
  const IntKernels kernels_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuInt(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  const IntOptions options{.bits = static_cast<uint32_t>(spec.Integer("bits", 2, 8)),
                           .block = static_cast<uint32_t>(spec.Integer("block", 0, int64_t{1} << 30)),
                           .is_stochastic = spec.Word("rounding", {"nearest", "stochastic"}) == "stochastic",
                           .seed = spec.Seed()};
  const bool is_shared = codec->trait() == Trait::kWidening;
  const uint32_t width = is_shared ? codec->Plan(1).result * 8 : 8;  // bits of a sum
  const std::string bits = std::to_string(options.bits);
  KernelsOf kernel(kernels);
  const IntKernels found{.ranges = kernel("int_ranges"),
                         .encode = kernel("int_encode" + bits),
                         .pack = kernel("int_pack" + bits),
                         .unpack = kernel("int_unpack" + bits),
                         .spread = kernel("int_spread" + std::to_string(width))};
  if (!kernel.status().ok()) return kernel.status();
  return GpuCodecPointer(std::make_shared<GpuInt>(codec, options, found));
}

}  // namespace byteps_like
