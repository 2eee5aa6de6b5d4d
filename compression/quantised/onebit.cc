// Scaled sign: one bit per element and the mean magnitude of each block of `block` elements. Seide et al., "1-Bit
// Stochastic Gradient Descent" (Interspeech 2014); the scale is that of Karimireddy et al., "Error Feedback Fixes
// SignSGD" (ICML 2019). Payload: a word of signs per 32 elements, then the scales as fp32.
#include <cmath>
#include <cstring>
#include <limits>

#include "compression/quantised/onebit_loops.h"
#include "compression/registry.h"

namespace byteps_like {

namespace {

constexpr uint32_t kLanes = 16;

class Onebit : public ReencodeCodec {
 public:
  Onebit(const CodecSpec& spec, uint32_t world, uint32_t block) : ReencodeCodec(spec.text(), world), block_(block) {}
  uint8_t id() const override { return 6; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = SignBytes(numel) + Blocks(numel) * sizeof(float);
    return {.payload = bytes, .result = bytes, .accumulator = uint64_t{numel} * sizeof(float)};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    const OnebitLoops& loops = Pick_kOnebit();
    std::byte* scales = payload + SignBytes(numel);
    for (uint32_t begin = 0; begin < numel; begin += block_, scales += sizeof(float)) {
      auto* const words = reinterpret_cast<uint32_t*>(payload) + begin / 32;
      const float scale = Pack(loops, x.subspan(begin, std::min(block_, numel - begin)), words);
      std::memcpy(scales, &scale, sizeof(scale));
    }
    return static_cast<uint32_t>(scales - payload);
  }

  Status DecodeInto(Bytes payload, float factor, bool add, std::span<float> sum) const override {
    const auto numel = static_cast<uint32_t>(sum.size());
    if (payload.size() != Plan(numel).payload) return Status(Code::kCorrupt, "onebit: a payload of the wrong length");
    const OnebitLoops& loops = Pick_kOnebit();
    const std::byte* scales = payload.data() + SignBytes(numel);
    for (uint32_t begin = 0; begin < numel; begin += block_, scales += sizeof(float)) {
      float scale;
      std::memcpy(&scale, scales, sizeof(scale));
      const auto* const words = reinterpret_cast<const uint32_t*>(payload.data()) + begin / 32;
      loops.unpack(words, std::min(block_, numel - begin), factor * scale, add, sum.data() + begin);
    }
    return Status();
  }

 private:
  static uint32_t SignBytes(uint32_t numel) { return (numel + 31) / 32 * 4; }
  uint32_t Blocks(uint32_t numel) const { return (numel + block_ - 1) / block_; }

  // Returns the mean magnitude.
  static float Pack(const OnebitLoops& loops, std::span<const float> x, uint32_t* words) {
    double lanes[kLanes] = {};
    loops.pack_and_sum(x.data(), x.size(), words, lanes);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    if (std::isnan(sum)) return std::numeric_limits<float>::quiet_NaN();  // of all that there are, the same anywhere
    return static_cast<float>(sum / static_cast<double>(x.size()));
  }

  const uint32_t block_;  // a multiple of 32
};

}  // namespace

Result<CodecPointer> MakeOnebit(CodecSpec& spec, uint32_t world) {
  const int64_t words = spec.Integer("block", 32, int64_t{1} << 30);
  const Status done = spec.Done();
  if (!done.ok()) return done;
  if (words % 32 != 0) return Status(Code::kInvalid, "codec " + spec.text() + ": block must be a multiple of 32");
  return CodecPointer(std::make_shared<Onebit>(spec, world, static_cast<uint32_t>(words)));
}

}  // namespace byteps_like
