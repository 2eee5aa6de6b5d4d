// fp8: csrc/cuda/fp8.cu.
#include <bit>

#include "compression/gpu/launches.h"
#include "compression/gpu/registry.h"

namespace byteps_like {
namespace {

constexpr uint32_t kEncoded = 16, kDecoded = 4;  // elements of a thread

class GpuFp8 : public GpuCodec {
 public:
  GpuFp8(CodecPointer codec, uint32_t block, KernelHandle encode, KernelHandle decode)
      : GpuCodec(std::move(codec)),
        log2_(static_cast<uint32_t>(std::countr_zero(block))),
        encode_(encode),
        decode_(decode) {}

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    return launcher.Launch(encode_, Shape(round, kEncoded), round.x, round.numel, log2_, payload);
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                  DevicePointer residual) const override {
    return launcher.Launch(decode_, Shape(round, kDecoded), payload, round.numel, log2_, -1.0f, round.x, residual);
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, twin().Plan(round.numel).result);
    if (!right.ok()) return right;
    return launcher.Launch(decode_, Shape(round, kDecoded), result, round.numel, log2_, factor, DevicePointer{0},
                           round.x);
  }

 private:
  static LaunchShape Shape(const GpuRound& round, uint32_t each) { return ShapeFor(round.numel, each, kBlockThreads); }

  const uint32_t log2_;  // of a block's elements
  const KernelHandle encode_, decode_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuFp8(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  const auto block = static_cast<uint32_t>(spec.Integer("block", 16, 2048));
  const std::string& format = spec.Word("format", {"e4m3", "e5m2"});
  KernelsOf kernel(kernels);
  const KernelHandle encode = kernel("fp8_encode_" + format), decode = kernel("fp8_decode_" + format);
  if (!kernel.status().ok()) return kernel.status();
  return GpuCodecPointer(std::make_shared<GpuFp8>(codec, block, encode, decode));
}

}  // namespace byteps_like
