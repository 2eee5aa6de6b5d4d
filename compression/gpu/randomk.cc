// randomk: csrc/cuda/randomk.cu.
#include "compression/gpu/launches.h"
#include "compression/gpu/registry.h"
#include "csrc/codec/random.h"
#include "csrc/gpu/kernel_table.h"

namespace byteps_like {
namespace {

constexpr uint32_t kElements = 1;         // the purpose of the draws, as compression/sparse/randomk.cc has it
constexpr uint32_t kOfRandomKThread = 4;  // draws, and elements that are looked at

class GpuRandomK : public GpuCodec {
 public:
  GpuRandomK(CodecPointer codec, bool scale, uint64_t seed, KernelsOf& kernel)
      : GpuCodec(std::move(codec)),
        scale_(scale),
        seed_(seed),
        gather_(kernel("randomk_gather")),
        doubt_(kernel("randomk_doubt")),
        scatter_(kernel("randomk_scatter")),
        residual_(kernel("randomk_residual")) {}

  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer payload) const override {
    const uint32_t drawn = Drawn(round);
    const Stream64 stream = StreamOf(seed_, round.draw, kElements, true);
    return Launches(launcher)
        .Over(drawn, kOfRandomKThread, gather_, round.x, round.numel, drawn, stream.low, stream.high, payload)
        .Over(round.numel, 4 * kOfRandomKThread, doubt_, round.x, round.numel, payload)
        .status();
  }

  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer payload,
                  DevicePointer residual) const override {
    const uint32_t drawn = Drawn(round);
    const Stream64 stream = StreamOf(seed_, round.draw, kElements, true);
    return Launches(launcher)
        .Copy(residual, round.x, size_t{round.numel} * sizeof(float))
        .Over(drawn, kOfRandomKThread, residual_, payload, round.numel, drawn, stream.low, stream.high, scale_,
              residual)
        .status();
  }

  Status Decode(Launcher& launcher, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t,
                float factor) const override {
    Status right = CheckLength(bytes, twin().Plan(round.numel).payload);
    if (!right.ok()) return right;
    const uint32_t drawn = Drawn(round);
    const Stream64 stream = StreamOf(seed_, round.draw, kElements, true);
    return Launches(launcher)
        .Zero(round.x, size_t{round.numel} * sizeof(float))
        .Over(drawn, kOfRandomKThread, scatter_, result, round.numel, drawn, stream.low, stream.high, scale_, factor,
              round.x)
        .status();
  }

 private:
  uint32_t Drawn(const GpuRound& round) const { return twin().Plan(round.numel).payload / sizeof(float); }

  const uint32_t scale_;
  const uint64_t seed_;
  const KernelHandle gather_, doubt_, scatter_, residual_;
};

}  // namespace

Result<GpuCodecPointer> MakeGpuRandomK(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels) {
  return MakeTwin<GpuRandomK>(kernels, codec, spec.Integer("scale", 0, 1) != 0, spec.Seed());
}

}  // namespace byteps_like
