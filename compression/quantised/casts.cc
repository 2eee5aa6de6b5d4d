// fp16 and bf16: arrays of 16-bit floats, which any reduction sums (ours in fp32, rounded once).
#include <algorithm>
#include <cstring>

#include "compression/registry.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

constexpr uint32_t kCastStretch = 2048;  // elements that stay in the nearest cache

class Cast : public Codec {
 public:
  Cast(const CodecSpec& spec, uint32_t world, uint8_t id, DType dtype)
      : Codec(spec.text(), world), id_(id), dtype_(dtype) {}
  uint8_t id() const override { return id_; }
  Trait trait() const override { return Trait::kDense; }
  CodecPlan Plan(uint32_t numel) const override { return {.payload = 2 * numel, .result = 2 * numel, .dense = dtype_}; }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    kernels::Cast(DType::kFloat32, dtype_, payload, x.data(), x.size());
    return static_cast<uint32_t>(2 * x.size());
  }

  void Residual(std::span<const float> x, const Draw&, const std::byte*, std::byte*, Bytes payload,
                float* residual) const override {
    if (residual != x.data()) std::memcpy(residual, x.data(), x.size_bytes());
    float values[kCastStretch];
    EachStretch(x.size(), [&](size_t first, size_t count) {
      ToFloat(payload.data() + 2 * first, count, -1.0f, values);
      kernels::Reduce(Op::kSum, DType::kFloat32, residual + first, values, count);
    });
  }

  Status Decode(Bytes result, uint32_t, const Draw&, const std::byte*, std::byte*, float factor,
                std::span<float> out) const override {
    if (result.size() != 2 * out.size()) return Status(Code::kCorrupt, spec() + ": a result of the wrong length");
    EachStretch(out.size(), [&](size_t first, size_t count) {
      ToFloat(result.data() + 2 * first, count, factor, out.data() + first);
    });
    return Status();
  }

 private:
  template <typename F>
  static void EachStretch(size_t numel, F stretch) {
    for (size_t first = 0; first < numel; first += kCastStretch)
      stretch(first, std::min<size_t>(kCastStretch, numel - first));
  }

  void ToFloat(const std::byte* from, size_t count, float factor, float* values) const {
    kernels::Cast(dtype_, DType::kFloat32, values, from, count);
    if (factor != 1.0f) kernels::Scale(DType::kFloat32, values, count, factor);
  }

  const uint8_t id_;
  const DType dtype_;
};

Result<CodecPointer> MakeCast(CodecSpec& spec, uint32_t world, uint8_t id, DType dtype) {
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<Cast>(spec, world, id, dtype));
}

}  // namespace

Result<CodecPointer> MakeFp16(CodecSpec& spec, uint32_t world) { return MakeCast(spec, world, 1, DType::kFloat16); }
Result<CodecPointer> MakeBf16(CodecSpec& spec, uint32_t world) { return MakeCast(spec, world, 2, DType::kBFloat16); }

}  // namespace byteps_like
