// fp16 and bf16: csrc/cuda/casts.cu.
#include "compression/gpu/launches.h"
#include "compression/gpu/registry.h"

namespace byteps_like {
namespace {

class GpuCast : public GpuCodec {
 public:
  GpuCast(CodecPointer codec, KernelHandle encode, KernelHandle residual, KernelHandle decode)
      : GpuCodec(std::move(codec)), encode_(encode), residual_(residual), decode_(decode) {}

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    return launcher.Launch(encode_, Shape(round), round.x, round.numel, payload);
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                  DevicePointer residual) const override {
    return launcher.Launch(residual_, Shape(round), round.x, round.numel, payload, residual);
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, 2 * round.numel);
    if (!right.ok()) return right;
    return launcher.Launch(decode_, Shape(round), result, round.numel, factor, round.x);
  }

 private:
  static LaunchShape Shape(const GpuRound& round) { return ShapeFor(round.numel, kOfDenseThread, kBlockThreads); }

  const KernelHandle encode_, residual_, decode_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuCast(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  KernelsOf kernel(kernels);
  const KernelHandle encode = kernel("casts_encode_" + spec.name());
  const KernelHandle residual = kernel("casts_residual_" + spec.name());
  const KernelHandle decode = kernel("casts_decode_" + spec.name());
  if (!kernel.status().ok()) return kernel.status();
  return GpuCodecPointer(std::make_shared<GpuCast>(codec, encode, residual, decode));
}

}  // namespace byteps_like
