// 8-bit floats, each block scaled by a power of two, as the Open Compute Project's "Microscaling Formats (MX)
// Specification" (2023) has it for blocks of 32. Payload: a byte per element, then the blocks' exponents.
#include "compression/loops/fp8.h"

#include <algorithm>

#include "compression/loops.h"
#include "compression/registry.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(Fp8Loops, kFp8)

namespace {

constexpr uint32_t kFp8Stretch = 2048;  // elements that stay in the nearest cache; a multiple of all blocks

class Fp8 : public ReencodeCodec {
 public:
  Fp8(const CodecSpec& spec, uint32_t world, bool is_e4m3, uint32_t block)
      : ReencodeCodec(spec.text(), world),
        dtype_(is_e4m3 ? DType::kFloat8E4M3FN : DType::kFloat8E5M2),
        top_(is_e4m3 ? 8 : 15),
        block_(block) {}
  uint8_t id() const override { return 3; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = numel + (numel + block_ - 1) / block_;
    return {.payload = bytes, .result = bytes, .accumulator = uint64_t{numel} * sizeof(float)};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    auto* const exponents = reinterpret_cast<uint8_t*>(payload + x.size());
    float scaled[kFp8Stretch];
    for (size_t first = 0; first < x.size(); first += kFp8Stretch) {
      const size_t count = std::min<size_t>(kFp8Stretch, x.size() - first);
      Pick_kFp8().scale(x.data() + first, count, block_, top_, exponents + first / block_, scaled);
      kernels::Cast(DType::kFloat32, dtype_, payload + first, scaled, count);
    }
    return Plan(static_cast<uint32_t>(x.size())).payload;
  }

  Status DecodeInto(Bytes payload, float factor, bool add, std::span<float> sum) const override {
    if (payload.size() != Plan(static_cast<uint32_t>(sum.size())).payload)
      return Status(Code::kCorrupt, spec() + ": a payload of the wrong length");
    const auto* const exponents = reinterpret_cast<const uint8_t*>(payload.data() + sum.size());
    float values[kFp8Stretch];
    for (size_t first = 0; first < sum.size(); first += kFp8Stretch) {
      const size_t count = std::min<size_t>(kFp8Stretch, sum.size() - first);
      kernels::Cast(dtype_, DType::kFloat32, values, payload.data() + first, count);
      Pick_kFp8().unscale(values, count, block_, exponents + first / block_, factor, add, sum.data() + first);
    }
    return Status();
  }

 private:
  const DType dtype_;
  const uint32_t top_;  // exponent of the format's greatest number
  const uint32_t block_;
};

}  // namespace

Result<CodecPointer> MakeFp8(CodecSpec& spec, uint32_t world) {
  const auto block = static_cast<uint32_t>(spec.Integer("block", 16, kFp8Stretch));
  const bool is_e4m3 = spec.Word("format", {"e4m3", "e5m2"}) == "e4m3";
  const Status done = spec.Done();
  if (!done.ok()) return done;
  if (kFp8Stretch % block != 0)
    return Status(Code::kInvalid, "codec " + spec.text() + ": block must be a power of two from 16 to 2048");
  return CodecPointer(std::make_shared<Fp8>(spec, world, is_e4m3, block));
}

}  // namespace byteps_like
