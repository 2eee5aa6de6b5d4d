// thc: csrc/cuda/thc.cu.
#include <array>
#include <cmath>
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

constexpr uint32_t kMostRamps = 15, kBends = 5;
struct ThcFoldOf {
  double scale;
  float middle, slope, offset;
  std::array<float, kBends> bends, at;
};
struct ThcRampsOf {
  std::array<double, kMostRamps> slopes;
  std::array<float, kMostRamps> offsets, tops;
  uint32_t count, is_folded;
  ThcFoldOf fold;
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

bool IsSymmetric(const ThcPoints& points) {
  const uint32_t cells = (1u << points.bits) - 1;
  for (uint32_t cell = 0; cell <= cells; ++cell)
    if (points.points[cell] + uint32_t{points.points[cells - cell]} != points.granularity) return false;
  return true;
}

// Bends of symmetric ramps, of which `first` gives the first point of each (csrc/cuda/thc.cu).
ThcFoldOf FoldOf(const ThcRampsOf& ramps, const std::array<uint32_t, kMostRamps>& first, const ThcPoints& points) {
  const double half = points.granularity / 2.0;
  const uint32_t middle = (ramps.count - 1) / 2;
  ThcFoldOf fold{};
  double slope = ramps.slopes[middle] * half, offset = 0;
  for (uint32_t k = middle + 1; k < ramps.count; ++k) {
    const double bend = (ramps.slopes[k] - ramps.slopes[k - 1]) / 2 * half, at = (first[k] - half) / half;
    slope += bend;
    offset -= bend * at;
    fold.bends[k - middle - 1] = static_cast<float>(bend);
    fold.at[k - middle - 1] = static_cast<float>(at);
  }
  fold.scale = 1 / half;
  fold.middle = 32768.0f * static_cast<float>((1u << points.bits) - 1) + 0.5f;
  fold.slope = static_cast<float>(slope);
  fold.offset = static_cast<float>(offset);
  return fold;
}

// They are folded where that is quicker, and all that is added so small that rounding it doesn't matter.
ThcRampsOf RampsOf(const ThcPoints& points) {
  constexpr double kSmall = 1 << 20;
  std::array<ThcRamp, kMostRamps> ramps{};
  std::array<uint32_t, kMostRamps> first{};
  ThcRampsOf made{};
  made.count = static_cast<uint32_t>(points.Ramps(1, 1, ramps.data()));
  made.is_folded = made.count > 1 && made.count <= 2 * kBends + 1 && IsSymmetric(points);
  for (uint32_t k = 0, cell = 0; k < made.count; cell += static_cast<uint32_t>(ramps[k++].top / 65536)) {
    first[k] = points.points[cell];
    made.slopes[k] = 65536.0 / (points.points[cell + 1] - points.points[cell]);
    made.offsets[k] = ramps[k].offset;
    made.tops[k] = ramps[k].top;
    if (std::fabs(made.offsets[k]) > kSmall || made.slopes[k] * points.granularity / 2 > kSmall) made.is_folded = 0;
  }
  if (made.is_folded != 0) made.fold = FoldOf(made, first, points);
  return made;
}

class GpuThc : public GpuCodec {
 public:
  GpuThc(CodecPointer codec, const ThcTableOf& table, const ThcRampsOf& ramps, uint64_t seed, const ThcKernels& kernels)
      : GpuCodec(std::move(codec)), table_(table), ramps_(ramps), seed_(seed), kernels_(kernels) {}

  Status Prepare(Launcher& launcher, const GpuRound& round, DevicePointer prelude) const override {
    const uint32_t blocks = RotationCount(round.numel, kMost);
    return launcher.Launch(kernels_.norm, {.blocks = blocks, .threads = kNormThreads}, round.x, round.numel, blocks,
                           prelude);
  }

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    const Stream64 rounding = StreamOf(seed_, round.draw, kRounding, false);
    return Rotated(launcher, round, kernels_.encode,
                   [&](KernelHandle kernel, const LaunchShape& shape, const ThcBlocks& blocks) {
                     return launcher.Launch(kernel, shape, round.x, blocks, table_, ramps_,
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
    Status right = CheckLength(bytes, twin().Plan(round.numel).result);
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
  const ThcRampsOf ramps_;
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
  return GpuCodecPointer(
      std::make_shared<GpuThc>(codec, TableOf(*points, codec->world()), RampsOf(*points), spec.Seed(), found));
}

}  // namespace byteps_like
