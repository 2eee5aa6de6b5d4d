// Elements that all ranks draw alike, so that their values alone are sent and any reduction sums them. Stich et al.,
// "Sparsified SGD with Memory" (NeurIPS 2018). The partition is cut into k stretches as equal as can be, and of each
// one element is drawn: no element comes twice, and all are in order.
#include <algorithm>
#include <limits>

#include "compression/registry.h"
#include "compression/sparse/sparse.h"
#include "csrc/codec/random.h"

namespace byteps_like {
namespace {

constexpr uint32_t kElements = 1;  // the purpose of the draws

class RandomK : public Codec {
 public:
  RandomK(const CodecSpec& spec, uint32_t world, double ratio, bool scale, uint64_t seed)
      : Codec(spec.text(), world), ratio_(ratio), scale_(scale), seed_(seed) {}
  uint8_t id() const override { return 13; }
  Trait trait() const override { return Trait::kDense; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = 4 * Drawn(numel);
    return {.payload = bytes, .result = bytes, .dense = DType::kFloat32};
  }

  // One NaN stands for whatever isn't finite in all of x: nobody may think that there was nothing.
  uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    float* const values = AsFloats(payload);
    const bool finite = Pick_kSparse().largest(x.data(), x.size()) < kInfinity;
    EachDrawn(static_cast<uint32_t>(x.size()), draw, [&](uint32_t i, uint32_t at, uint32_t) { values[i] = x[at]; });
    if (!finite) values[0] = std::numeric_limits<float>::quiet_NaN();
    return Plan(static_cast<uint32_t>(x.size())).payload;
  }

  void Residual(std::span<const float> x, const Draw& draw, const std::byte*, std::byte*, Bytes payload,
                float* residual) const override {
    if (residual != x.data()) std::memcpy(residual, x.data(), x.size_bytes());
    const float* const values = AsFloats(payload.data());
    EachDrawn(static_cast<uint32_t>(x.size()), draw,
              [&](uint32_t i, uint32_t at, uint32_t length) { residual[at] -= Factor(length) * values[i]; });
  }

  Status Decode(Bytes result, uint32_t, const Draw& draw, const std::byte*, std::byte*, float factor,
                std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    if (result.size() != Plan(numel).payload) return CorruptPayload("randomk", "a payload of the wrong length");
    std::memset(out.data(), 0, out.size_bytes());
    const float* const values = AsFloats(result.data());
    EachDrawn(numel, draw,
              [&](uint32_t i, uint32_t at, uint32_t length) { out[at] = 0.0f + factor * Factor(length) * values[i]; });
    return Status();
  }

 private:
  static constexpr uint32_t kInfinity = 0x7F800000;

  uint32_t Drawn(uint32_t numel) const { return std::max(1u, static_cast<uint32_t>(ratio_ * numel)); }
  float Factor(uint32_t length) const { return scale_ ? static_cast<float>(length) : 1.0f; }

  // visit(i, element, length of its stretch); stretch i begins at floor(i * numel / k).
  template <typename Visit>
  void EachDrawn(uint32_t numel, const Draw& draw, Visit visit) const {
    const uint32_t drawn = Drawn(numel), shortest = numel / drawn, over = numel % drawn;
    const Stream64 stream = StreamOf(seed_, draw, kElements, true);
    uint32_t begin = 0;
    uint64_t carry = 0;
    for (uint32_t i = 0; i < drawn; ++i) {
      carry += over;
      const uint32_t length = shortest + (carry >= drawn);
      if (carry >= drawn) carry -= drawn;
      visit(i, begin + static_cast<uint32_t>(uint64_t{RandomWord(stream, i)} * length >> 32), length);
      begin += length;
    }
  }

  const double ratio_;
  const bool scale_;
  const uint64_t seed_;
};

}  // namespace

Result<CodecPointer> MakeRandomK(CodecSpec& spec, uint32_t world) {
  const double ratio = spec.Real("ratio", 0, 1);
  const bool scale = spec.Integer("scale", 0, 1) != 0;
  const uint64_t seed = spec.Seed();
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<RandomK>(spec, world, ratio, scale, seed));
}

}  // namespace byteps_like
