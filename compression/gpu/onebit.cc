// onebit: csrc/cuda/onebit.cu.
#include "compression/gpu/launches.h"
#include "compression/gpu/registry.h"

namespace byteps_like {
namespace {

constexpr uint32_t kOfDecodingThread = 32;  // elements

class GpuOnebit : public GpuCodec {
 public:
  GpuOnebit(CodecPointer codec, uint32_t block, KernelHandle encode, KernelHandle decode)
      : GpuCodec(std::move(codec)), block_(block), encode_(encode), decode_(decode) {}

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    return launcher.Launch(encode_, ShapeFor(round.numel, block_ / kBlockThreads + 1, kBlockThreads), round.x,
                           round.numel, block_, payload);
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                  DevicePointer residual) const override {
    return Add(launcher, round, payload, -1.0f, round.x, residual);
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, twin().Plan(round.numel).payload);
    if (!right.ok()) return right;
    return Add(launcher, round, result, factor, 0, round.x);
  }

 private:
  Status Add(Launcher& launcher, const GpuRound& round, DevicePointer payload, float factor, DevicePointer base,
             DevicePointer out) const {
    return launcher.Launch(decode_, ShapeFor(round.numel, kOfDecodingThread, kBlockThreads), payload, round.numel,
                           block_, factor, base, out);
  }

  const uint32_t block_;
  const KernelHandle encode_, decode_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuOnebit(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  const auto block = static_cast<uint32_t>(spec.Integer("block", 32, int64_t{1} << 30));
  KernelsOf kernel(kernels);
  const KernelHandle encode = kernel("onebit_encode"), decode = kernel("onebit_decode");
  if (!kernel.status().ok()) return kernel.status();
  return GpuCodecPointer(std::make_shared<GpuOnebit>(codec, block, encode, decode));
}

}  // namespace byteps_like
