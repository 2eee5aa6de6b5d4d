// The elements that any rank has other than zero, and no index: all ranks agree on the bits beforehand (the prelude),
// and send their values in the order of the union, which any reduction sums. Lossless. Li et al., "Accelerating
// Distributed Deep Learning using Lossless Homomorphic Compression" (arXiv 2402.07529) has the index; in its order sums
// need no sketch.
#include "compression/registry.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

class Bitmap : public Codec {
 public:
  Bitmap(const CodecSpec& spec, uint32_t world) : Codec(spec.text(), world) {}
  uint8_t id() const override { return 17; }
  Trait trait() const override { return Trait::kDense; }

  CodecPlan Plan(uint32_t numel) const override {
    return {.prelude = 4 * WordsOf(numel),
            .prelude_dtype = DType::kUInt32,
            .prelude_op = Op::kBor,
            .payload = 4 * numel,
            .result = 4 * numel,
            .dense = DType::kFloat32};
  }

  void Prepare(std::span<const float> x, const Draw&, std::byte*, std::byte* prelude) const override {
    Pick_kSparse().nonzero(x.data(), x.size(), AsWords(prelude));
  }

  // A zero where there is nothing to send.
  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte*,
                  std::byte* payload) const override {
    std::memset(payload, 0, sizeof(float));
    const size_t count = Pick_kSparse().pick(x.data(), AsWords(agreed), x.size(), AsFloats(payload));
    return static_cast<uint32_t>(std::max<size_t>(count, 1) * sizeof(float));
  }

  void Residual(std::span<const float> x, const Draw&, const std::byte*, std::byte*, Bytes,
                float* residual) const override {
    std::memset(residual, 0, x.size_bytes());
  }

  Status Decode(Bytes result, uint32_t, const Draw&, const std::byte* agreed, std::byte*, float factor,
                std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    const uint32_t* const words = AsWords(agreed);
    const uint32_t beyond = words[WordsOf(numel) - 1] & ~LastWordMask(numel);
    const size_t count = CountBits(words, numel) - std::popcount(beyond);
    if (result.size() != std::max<size_t>(count, 1) * sizeof(float))
      return CorruptPayload("bitmap", "a payload of another length than the union's");
    Pick_kSparse().spread(words, numel, AsFloats(result.data()), factor, out.data());
    return Status();
  }
};

}  // namespace

Result<CodecPointer> MakeBitmap(CodecSpec& spec, uint32_t world) {
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<Bitmap>(spec, world));
}

}  // namespace byteps_like
