// thc: csrc/cuda/thc.cu.
#include <string>

#include "compression/gpu/registry.h"
#include "compression/quantised/rotation.h"
#include "compression/quantised/thc_table.h"
#include "csrc/codec/random.h"

namespace byteps_like {
namespace {

constexpr uint32_t kMost = 32768;  // elements of a rotation block
constexpr uint32_t kThcThreads = 1024, kNormThreads = 512;
enum Purpose : uint32_t { kSigns = 1, kRounding = 2 };  // compression/quantised/thc.cc

// Of `elements` with those left out that keep lanes in banks apart (csrc/cuda/rotation.cuh).
constexpr uint32_t TileBytes(uint32_t elements) { return (elements + elements / 32 + elements / 1024) * 4; }
constexpr uint32_t kPartBytes = TileBytes(8192), kWholeBytes = TileBytes(kMost);
constexpr uint32_t kStaticBytes = 8192;  // more than what kernels have beside it

// Arguments of the kernels.
struct ThcStream {
  uint32_t low, high;
};
struct ThcBlocks {
  uint32_t numel, first, end;
  ThcStream signs;
  DevicePointer norms;
};
struct ThcTableOf {
  double limit;
  uint32_t bits, granularity, is_wide;
  std::array<uint32_t, 4> points;
};

// Of whole blocks (0: they go the other way too), and of any.
struct ThcKernel {
  KernelHandle whole, any;
};
struct ThcKernels {
  KernelHandle norm;
  ThcKernel encode, residual, decode, clamped;
};

ThcTableOf TableOf(const ThcPoints& points, uint32_t world) {
  ThcTableOf table{.limit = points.limit,
                   .bits = static_cast<uint32_t>(points.bits),
                   .granularity = points.granularity,
                   .is_wide = points.wide(world),
                   .points = {}};
  for (uint32_t i = 0; i < 16; ++i) table.points[i / 4] |= uint32_t{points.points[i]} << (8 * (i % 4));
  return table;
}

class GpuThc : public GpuCodec {
 public:
  GpuThc(CodecPointer codec, const ThcTableOf& table, uint64_t seed, const ThcKernels& kernels)
      : GpuCodec(std::move(codec)), table_(table), seed_(seed), kernels_(kernels) {}

  Status Prepare(Launcher& launcher, const GpuRound& round, DevicePointer prelude) const override {
    const uint32_t blocks = RotationCount(round.numel, kMost);
    return launcher.Launch(kernels_.norm, {.blocks = blocks, .threads = kNormThreads}, round.x, round.numel, blocks,
                           prelude);
  }

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    const Stream64 rounding = StreamOf(seed_, round.draw, kRounding, false);
    return Rotated(launcher, round, kernels_.encode,
                   [&](KernelHandle kernel, const LaunchShape& shape, const ThcBlocks& blocks) {
                     return launcher.Launch(kernel, shape, round.x, blocks, table_,
                                            ThcStream{rounding.low, rounding.high}, payload);
                   });
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                  DevicePointer residual) const override {
    return Rotated(launcher, round, kernels_.residual,
                   [&](KernelHandle kernel, const LaunchShape& shape, const ThcBlocks& blocks) {
                     return launcher.Launch(kernel, shape, round.x, blocks, table_, payload, residual);
                   });
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t count,
                float factor) const override {
    const Status right = CheckLength(bytes, twin().Plan(round.numel).result);
    if (!right.ok()) return right;
    if (count == 0 || count > twin().world())
      return Status(Code::kCorrupt, "thc: a result of " + std::to_string(count) + " contributions");
    return Rotated(launcher, round, kernels_.decode,
                   [&](KernelHandle kernel, const LaunchShape& shape, const ThcBlocks& blocks) {
                     return launcher.Launch(kernel, shape, result, blocks, table_, count, factor, round.x);
                   });
  }

  Status Clamped(Launcher& launcher, const GpuRound& round, DevicePointer found) const override {
    return Rotated(launcher, round, kernels_.clamped,
                   [&](KernelHandle kernel, const LaunchShape& shape, const ThcBlocks& blocks) {
                     return launcher.Launch(kernel, shape, round.x, blocks, table_, found);
                   });
  }

 private:
  // Two launches at most: one of the whole blocks, where the device has the shared memory for it, one of the others.
  template <typename F>
  Status Rotated(const Launcher& launcher, const GpuRound& round, const ThcKernel& kernel, const F& launch) const {
    const Stream64 stream = StreamOf(seed_, round.draw, kSigns, true);
    const bool has_memory = launcher.most_shared() >= kWholeBytes + kStaticBytes;
    const uint32_t whole = kernel.whole != 0 && has_memory && round.x % 16 == 0 ? round.numel / kMost : 0;
    const uint32_t all = RotationCount(round.numel, kMost);
    ThcBlocks blocks{round.numel, 0, whole, {stream.low, stream.high}, round.agreed};
    if (whole > 0) {
      const Status launched =
          launch(kernel.whole, {.blocks = whole, .threads = kThcThreads, .shared = kWholeBytes}, blocks);
      if (!launched.ok()) return launched;
    }
    blocks.first = whole;
    blocks.end = all;
    if (whole == all) return {};
    return launch(kernel.any, {.blocks = all - whole, .threads = kThcThreads, .shared = kPartBytes}, blocks);
  }

  const ThcTableOf table_;
  const uint64_t seed_;
  const ThcKernels kernels_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuThc(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  auto points = ThcPoints::Find(static_cast<int>(spec.Integer("bits", 2, 4)),
                                static_cast<int>(spec.Integer("clamp", 16, 64)), spec.Text("table"), codec->world());
  if (!points.ok()) return points.status();
  KernelsOf kernel(kernels);
  const auto both = [&](const std::string& name) { return ThcKernel{kernel(name + "_whole"), kernel(name)}; };
  const ThcKernels found{.norm = kernel("thc_norm"),
                         .encode = both("thc_encode"),
                         .residual = both("thc_residual"),
                         .decode = both("thc_decode"),
                         .clamped = {0, kernel("thc_clamped")}};
  if (!kernel.status().ok()) return kernel.status();
  return GpuCodecPointer(std::make_shared<GpuThc>(codec, TableOf(*points, codec->world()), spec.Seed(), found));
}

}  // namespace byteps_like
