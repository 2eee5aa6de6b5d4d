// Integers with an exponent per block, agreed as the maximum over all ranks: sums of them are the same bits in any
// order and route. Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (SwitchML, NSDI
// 2021).
//
// Prelude: per block floor(log2 of the greatest magnitude) as int8; kZero for zeros and denormals, kTooLarge for 2^127
// and more, and for what isn't finite. Payload: integers of 32 or 16 bits.
#include "compression/quantised/fixed.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "compression/loops.h"
#include "compression/loops/fixed.h"
#include "compression/registry.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(FixedLoops, kFixed)

int BitsOfMagnitude(uint32_t bits, uint32_t world) {
  const uint64_t limit = (uint64_t{1} << bits) - 2;  // in halves
  int k = 0;
  while (world * ((uint64_t{2} << k) + 1) <= limit) ++k;
  return k - 1;
}

namespace {

constexpr int kZero = -127;
constexpr int kTooLarge = 127;

float PowerOfTwo(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

class Fixed : public Codec {
 public:
  Fixed(const CodecSpec& spec, uint32_t world, uint32_t bits, uint32_t block)
      : Codec(spec.text(), world), width_(bits / 8), magnitude_(BitsOfMagnitude(bits, world)), block_(block) {}
  uint8_t id() const override { return 4; }
  Trait trait() const override { return Trait::kDense; }

  CodecPlan Plan(uint32_t numel) const override {
    return {.prelude = (numel + block_ - 1) / block_,
            .prelude_dtype = DType::kInt8,
            .payload = width_ * numel,
            .result = width_ * numel,
            .dense = width_ == 4 ? DType::kInt32 : DType::kInt16};
  }

  void Prepare(std::span<const float> x, const Draw&, std::byte*, std::byte* prelude) const override {
    EachBlock(x.size(), [&](size_t first, size_t count) {
      const int exponent = static_cast<int>(Pick_kFixed().magnitude(x.data() + first, count) >> 23) - 127;
      *prelude++ = static_cast<std::byte>(std::min(exponent, kTooLarge));
    });
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte*,
                  std::byte* payload) const override {
    EachBlock(x.size(), [&](size_t first, size_t count) {
      const int exponent = static_cast<int8_t>(*agreed++);
      if (exponent <= kZero || exponent == kTooLarge)
        std::memset(payload + width_ * first, 0, width_ * count);
      else
        Pick_kFixed().encode(x.data() + first, count, PowerOfTwo(Shift(exponent)), width_, payload + width_ * first);
    });
    return static_cast<uint32_t>(width_ * x.size());
  }

  void Residual(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte*, Bytes payload,
                float* residual) const override {
    if (residual != x.data()) std::memcpy(residual, x.data(), x.size_bytes());
    Add(payload.data(), agreed, -1.0f, true, {residual, x.size()});
  }

  Status Decode(Bytes result, uint32_t, const Draw&, const std::byte* agreed, std::byte*, float factor,
                std::span<float> out) const override {
    if (result.size() != width_ * out.size()) return Status(Code::kCorrupt, spec() + ": a result of the wrong length");
    Add(result.data(), agreed, factor, false, out);
    return Status();
  }

 private:
  // Elements are multiplied by 2^Shift: held where its inverse is still a normal number.
  int Shift(int exponent) const { return std::min(magnitude_ - (exponent + 1), 126); }

  void Add(const std::byte* integers, const std::byte* agreed, float factor, bool add, std::span<float> out) const {
    EachBlock(out.size(), [&](size_t first, size_t count) {
      const int exponent = static_cast<int8_t>(*agreed++);
      const float step = exponent == kTooLarge ? std::numeric_limits<float>::quiet_NaN()
                         : exponent <= kZero   ? 0.0f
                                               : PowerOfTwo(-Shift(exponent));
      Pick_kFixed().decode(integers + width_ * first, count, width_, step, factor, add, out.data() + first);
    });
  }

  template <typename F>
  void EachBlock(size_t numel, F block) const {
    for (size_t first = 0; first < numel; first += block_) block(first, std::min<size_t>(block_, numel - first));
  }

  const uint32_t width_;  // bytes of an integer
  const int magnitude_;   // one rank's are at most 2^magnitude_
  const uint32_t block_;
};

}  // namespace

Result<CodecPointer> MakeFixed(CodecSpec& spec, uint32_t world) {
  const auto bits = static_cast<uint32_t>(spec.Integer("bits", 16, 32));
  const auto block = static_cast<uint32_t>(spec.Integer("block", 16, int64_t{1} << 30));
  const Status done = spec.Done();
  if (!done.ok()) return done;
  if (bits != 16 && bits != 32) return Status(Code::kInvalid, "codec " + spec.text() + ": bits must be 16 or 32");
  if (BitsOfMagnitude(bits, world) < 1)
    return Status(Code::kInvalid, "codec " + spec.text() + ": sums of " + std::to_string(world) + " ranks don't fit");
  return CodecPointer(std::make_shared<Fixed>(spec, world, bits, block));
}

}  // namespace byteps_like
