// Signs, and of all ranks' the majority's: Bernstein et al., "signSGD with Majority Vote is Communication Efficient And
// Fault Tolerant" (ICLR 2019). Payload and result: a word of signs per 32 elements, then for each block the mean
// magnitude as fp32, in a result the greatest of all ranks'.
//
// Accumulator: those greatest magnitudes, then the count of negative signs of each element, in slices (loops/vote.h).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compression/loops.h"
#include "compression/loops/vote.h"
#include "compression/quantised/onebit_loops.h"
#include "compression/registry.h"
#include "csrc/codec/random.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(VoteLoops, kVote)

namespace {

float ScaleAt(const std::byte* array, size_t i) {
  float value;
  std::memcpy(&value, array + i * sizeof(value), sizeof(value));
  return value;
}

class Sign : public Codec {
 public:
  Sign(const CodecSpec& spec, uint32_t world, uint32_t block, bool is_unit, uint64_t seed)
      : Codec(spec.text(), world),
        planes_(static_cast<uint32_t>(std::bit_width(world))),
        block_(block),
        is_unit_(is_unit),
        seed_(seed) {}
  uint8_t id() const override { return 7; }
  Trait trait() const override { return Trait::kVote; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = SignBytes(numel) + ScaleBytes(numel);
    return {.payload = bytes, .result = bytes, .accumulator = uint64_t{planes_} * SignBytes(numel) + ScaleBytes(numel)};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    std::byte* scales = payload + SignBytes(numel);
    EachBlock(numel, [&](uint32_t first, uint32_t count) {
      const float scale = Pack(x.subspan(first, count), reinterpret_cast<uint32_t*>(payload) + first / 32);
      std::memcpy(scales, &scale, sizeof(scale));
      scales += sizeof(scale);
    });
    return Plan(numel).payload;
  }

  void Residual(std::span<const float> x, const Draw&, const std::byte*, std::byte*, Bytes payload,
                float* residual) const override {
    if (residual != x.data()) std::memcpy(residual, x.data(), x.size_bytes());
    Unpack(payload, -1.0f, true, {residual, x.size()});
  }

  void Reset(uint32_t numel, std::byte* accumulator) const override {
    std::memset(accumulator, 0, Plan(numel).accumulator);
  }

  Status Accumulate(uint32_t numel, Bytes payload, std::byte*, std::byte* accumulator) const override {
    if (payload.size() != Plan(numel).payload) return Status(Code::kCorrupt, "sign: a payload of the wrong length");
    const std::byte* const scales = payload.data() + SignBytes(numel);
    for (uint32_t i = 0; i < ScaleBytes(numel) / sizeof(float); ++i) {
      const float most = Greater(ScaleAt(accumulator, i), ScaleAt(scales, i));
      std::memcpy(accumulator + i * sizeof(most), &most, sizeof(most));
    }
    Pick_kVote().count(reinterpret_cast<const uint32_t*>(payload.data()), Words(numel), planes_,
                       reinterpret_cast<uint32_t*>(accumulator + ScaleBytes(numel)));
    return Status();
  }

  uint32_t Emit(uint32_t numel, uint32_t count, const Draw& draw, std::byte*, std::byte* accumulator,
                std::byte* result) const override {
    const Stream64 stream = StreamOf(seed_, draw, 0, true);
    Pick_kVote().decide(reinterpret_cast<const uint32_t*>(accumulator + ScaleBytes(numel)), Words(numel), planes_,
                        count / 2, count % 2 == 0, stream.low, stream.high, reinterpret_cast<uint32_t*>(result));
    std::memcpy(result + SignBytes(numel), accumulator, ScaleBytes(numel));
    return Plan(numel).result;
  }

  Status Decode(Bytes result, uint32_t count, const Draw&, const std::byte*, std::byte*, float factor,
                std::span<float> out) const override {
    if (result.size() != Plan(static_cast<uint32_t>(out.size())).result)
      return Status(Code::kCorrupt, "sign: a result of the wrong length");
    Unpack(result, factor * static_cast<float>(count), false, out);
    return Status();
  }

 private:
  static uint32_t Words(uint32_t numel) { return (numel + 31) / 32; }
  static uint32_t SignBytes(uint32_t numel) { return Words(numel) * 4; }
  uint32_t ScaleBytes(uint32_t numel) const { return (numel + block_ - 1) / block_ * sizeof(float); }

  template <typename F>
  void EachBlock(uint32_t numel, F block) const {
    for (uint32_t first = 0; first < numel; first += std::min(block_, numel - first))
      block(first, std::min(block_, numel - first));
  }

  // NaN is greater than all.
  static float Greater(float a, float b) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
    return std::max(a, b);
  }

  // Returns the magnitude.
  float Pack(std::span<const float> x, uint32_t* words) const {
    double lanes[16] = {}, sum = 0;
    Pick_kOnebit().pack_and_sum(x.data(), x.size(), words, lanes);
    for (const double lane : lanes) sum += lane;
    const auto mean = static_cast<float>(sum / static_cast<double>(x.size()));
    if (!std::isfinite(mean)) return std::numeric_limits<float>::quiet_NaN();
    return is_unit_ && sum > 0 ? 1.0f : mean;
  }

  void Unpack(Bytes payload, float factor, bool add, std::span<float> sum) const {
    const auto numel = static_cast<uint32_t>(sum.size());
    const std::byte* const scales = payload.data() + SignBytes(numel);
    EachBlock(numel, [&](uint32_t first, uint32_t count) {
      Pick_kOnebit().unpack(reinterpret_cast<const uint32_t*>(payload.data()) + first / 32, count,
                            factor * ScaleAt(scales, first / block_), add, sum.data() + first);
    });
  }

  const uint32_t planes_;  // bits of a counter
  const uint32_t block_;   // a multiple of 32
  const bool is_unit_;
  const uint64_t seed_;
};

}  // namespace

Result<CodecPointer> MakeSign(CodecSpec& spec, uint32_t world) {
  const auto block = static_cast<uint32_t>(spec.Integer("block", 32, int64_t{1} << 30));
  const bool is_unit = spec.Word("magnitude", {"mean", "unit"}) == "unit";
  const uint64_t seed = spec.Seed();
  const Status done = spec.Done();
  if (!done.ok()) return done;
  if (block % 32 != 0) return Status(Code::kInvalid, "codec " + spec.text() + ": block must be a multiple of 32");
  return CodecPointer(std::make_shared<Sign>(spec, world, block, is_unit, seed));
}

}  // namespace byteps_like
