// Whole chunks of which all ranks choose the same, those whose norms have the largest sum: the prelude. Their values
// are summed by any reduction. After Han et al., "Beyond Throughput and Compression Ratios: Towards High End-to-end
// Utility of Gradient Compression" (HotNets 2024, arXiv 2407.01378): TopK Chunked.
#include <algorithm>
#include <cmath>

#include "compression/registry.h"
#include "compression/sparse/select.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kLanes = 16;

class ChunkTopK : public Codec {
 public:
  ChunkTopK(const CodecSpec& spec, uint32_t world, uint32_t chunk, double ratio)
      : Codec(spec.text(), world), chunk_(chunk), ratio_(ratio) {}
  uint8_t id() const override { return 14; }
  Trait trait() const override { return Trait::kDense; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = Chosen(numel) * Width(numel) * 4;
    return {.prelude = Chunks(numel) * 4,
            .prelude_dtype = DType::kFloat32,
            .prelude_op = Op::kSum,
            .payload = bytes,
            .result = bytes,
            .dense = DType::kFloat32,
            .workspace = Selection::Bytes(Chunks(numel))};
  }

  void Prepare(std::span<const float> x, const Draw&, std::byte*, std::byte* prelude) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    float* const norms = AsFloats(prelude);
    for (uint32_t chunk = 0; chunk < Chunks(numel); ++chunk) {
      double lanes[kLanes] = {};
      Pick_kSparse().squares(x.data() + size_t{chunk} * chunk_, LengthOf(chunk, numel), lanes);
      double sum = 0;
      for (const double lane : lanes) sum += lane;
      norms[chunk] = static_cast<float>(std::sqrt(sum));
    }
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte* workspace,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    for (const uint32_t chunk : Choose(numel, agreed, workspace)) {
      const size_t bytes = LengthOf(chunk, numel) * sizeof(float), room = Width(numel) * sizeof(float);
      std::memcpy(payload, x.data() + size_t{chunk} * chunk_, bytes);
      std::memset(payload + bytes, 0, room - bytes);
      payload += room;
    }
    return Plan(numel).payload;
  }

  void Residual(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte* workspace, Bytes,
                float* residual) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    if (residual != x.data()) std::memcpy(residual, x.data(), x.size_bytes());
    for (const uint32_t chunk : Choose(numel, agreed, workspace))
      std::memset(residual + size_t{chunk} * chunk_, 0, LengthOf(chunk, numel) * sizeof(float));
  }

  Status Decode(Bytes result, uint32_t, const Draw&, const std::byte* agreed, std::byte* workspace, float factor,
                std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    if (result.size() != Plan(numel).payload) return CorruptPayload("chunktopk", "a payload of the wrong length");
    std::memset(out.data(), 0, out.size_bytes());
    const float* values = AsFloats(result.data());
    for (const uint32_t chunk : Choose(numel, agreed, workspace)) {
      Pick_kSparse().scaled(values, LengthOf(chunk, numel), factor, false, out.data() + size_t{chunk} * chunk_);
      values += Width(numel);
    }
    return Status();
  }

 private:
  uint32_t Chunks(uint32_t numel) const { return Rounded(numel, chunk_); }
  uint32_t Chosen(uint32_t numel) const { return std::max(1u, static_cast<uint32_t>(ratio_ * Chunks(numel))); }
  uint32_t Width(uint32_t numel) const { return std::min(chunk_, numel); }
  uint32_t LengthOf(uint32_t chunk, uint32_t numel) const { return std::min(chunk_, numel - chunk * chunk_); }

  std::span<const uint32_t> Choose(uint32_t numel, const std::byte* agreed, std::byte* workspace) const {
    SelectLargest({AsFloats(agreed), Chunks(numel)}, Chosen(numel), Selection(AsWords(workspace), Chunks(numel)));
    return {AsWords(workspace), Chosen(numel)};
  }

  const uint32_t chunk_;
  const double ratio_;
};

}  // namespace

Result<CodecPointer> MakeChunkTopK(CodecSpec& spec, uint32_t world) {
  const auto chunk = static_cast<uint32_t>(spec.Integer("chunk", 1, int64_t{1} << 20));
  const double ratio = spec.Real("ratio", 0, 1);
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<ChunkTopK>(spec, world, chunk, ratio));
}

}  // namespace byteps_like
