// fixed: csrc/cuda/fixed.cu.
#include "compression/quantised/fixed.h"

#include "compression/gpu/launches.h"
#include "compression/gpu/registry.h"

namespace byteps_like {
namespace {

constexpr uint32_t kFixedStretch = 8192;  // elements of a block that one thread block looks at

class GpuFixed : public GpuCodec {
 public:
  GpuFixed(const CodecPointer& codec, CodecSpec& spec, KernelsOf& kernel) : GpuCodec(codec) {
    const auto bits = static_cast<uint32_t>(spec.Integer("bits", 16, 32));
    block_ = static_cast<uint32_t>(spec.Integer("block", 16, int64_t{1} << 30));
    width_ = bits / 8;
    magnitude_ = BitsOfMagnitude(bits, codec->world());
    prepare_ = kernel("fixed_prepare");
    greatest_ = kernel("fixed_greatest");
    exponents_ = kernel("fixed_exponents");
    encode_ = kernel("fixed_encode_" + std::to_string(bits));
    decode_ = kernel("fixed_decode_" + std::to_string(bits));
  }

  uint64_t Workspace(uint32_t numel) const override { return is_large() ? Blocks(numel) * sizeof(uint32_t) : 0; }

  Status Prepare(Launcher& launcher, const GpuRound& round, DevicePointer prelude) const override {
    const uint32_t blocks = Blocks(round.numel);
    if (!is_large())
      return launcher.Launch(prepare_, ShapeFor(uint64_t{blocks} * kWarpThreads, 1, kBlockThreads), round.x,
                             round.numel, block_, prelude);
    Status status = launcher.Fill(round.workspace, 0, Workspace(round.numel));
    if (!status.ok()) return status;
    const LaunchShape shape = ShapeFor(round.numel, kFixedStretch / kBlockThreads, kBlockThreads);
    status = launcher.Launch(greatest_, shape, round.x, round.numel, block_, kFixedStretch, round.workspace);
    if (!status.ok()) return status;
    return launcher.Launch(exponents_, ShapeFor(blocks, 1, kBlockThreads), round.workspace, blocks, prelude);
  }

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    return launcher.Launch(encode_, Shape(round), round.x, round.numel, block_, magnitude_, round.agreed, payload);
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                  DevicePointer residual) const override {
    return Add(launcher, round, payload, -1.0f, round.x, residual);
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, width_ * round.numel);
    if (!right.ok()) return right;
    return Add(launcher, round, result, factor, 0, round.x);
  }

 private:
  bool is_large() const { return block_ > kFixedStretch; }
  uint32_t Blocks(uint32_t numel) const { return (numel - 1) / block_ + 1; }
  static LaunchShape Shape(const GpuRound& round) { return ShapeFor(round.numel, kOfDenseThread, kBlockThreads); }

  Status Add(Launcher& launcher, const GpuRound& round, DevicePointer integers, float factor, DevicePointer base,
             DevicePointer out) const {
    return launcher.Launch(decode_, Shape(round), integers, round.numel, block_, magnitude_, round.agreed, factor, base,
                           out);
  }

  uint32_t width_, block_;
  int32_t magnitude_;
  KernelHandle prepare_, greatest_, exponents_, encode_, decode_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuFixed(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  return MakeTwin<GpuFixed>(kernels, codec, spec);
}

}  // namespace byteps_like
