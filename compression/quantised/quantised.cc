#include "compression/quantised/quantised.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compression/loops.h"
#include "csrc/codec/random.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(QuantisedLoops, kQuantised)

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Ranges below it count as zero, so that levels / range is finite.
constexpr float kLeastRange = 0x1p-100f;

uint8_t* BytesOf(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }
const uint8_t* BytesOf(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }

float FloatAt(const std::byte* array, size_t i) {
  float value;
  std::memcpy(&value, array + i * sizeof(value), sizeof(value));
  return value;
}

// The arithmetic of both kinds.
class Quantiser {
 public:
  explicit Quantiser(const QuantisedOptions& options) : options_(options) {}

  uint32_t Blocks(uint32_t numel) const {
    return options_.block == 0 ? 1 : (numel + options_.block - 1) / options_.block;
  }
  uint32_t RangeBytes(uint32_t numel) const { return Blocks(numel) * sizeof(float); }
  uint32_t NumberBytes(uint32_t numel) const {
    const uint32_t group = 32 * 8 / options_.grid.bits;
    return numel / group * 32 + std::min(numel % group, 32u);
  }

  // To the `numel` elements: block(index, first element, its elements).
  template <typename F>
  void EachBlock(uint32_t numel, F block) const {
    const uint32_t size = options_.block == 0 ? numel : options_.block;
    for (uint32_t i = 0, first = 0; first < numel; ++i, first += std::min(size, numel - first))
      block(i, first, std::min(size, numel - first));
  }

  // NaN if anything in the block isn't finite.
  float Range(std::span<const float> x) const {
    const QuantisedLoops& loops = Pick_kQuantised();
    const float most = std::bit_cast<float>(loops.magnitude(x.data(), x.size()));
    float range = most;
    if (options_.euclidean || options_.clip > 0) {
      double lanes[16] = {}, sum = 0;
      loops.squares(x.data(), x.size(), lanes);
      for (const double lane : lanes) sum += lane;
      if (options_.euclidean)
        range = static_cast<float>(std::sqrt(sum));
      else
        range = std::min(most, options_.clip * static_cast<float>(std::sqrt(sum / static_cast<double>(x.size()))));
    }
    if (!std::isfinite(most) || !std::isfinite(range)) return kNan;
    return range < kLeastRange ? 0.0f : range;
  }

  void Pack(std::span<const float> x, uint32_t first, const Stream64& stream, float range, std::byte* numbers) const {
    Grid grid = options_.grid;
    const bool usable = range >= kLeastRange && std::isfinite(range);
    if (!usable) grid.rounding = Rounding::kZero;
    const Stretch stretch{first, static_cast<uint32_t>(x.size())};
    Pick_kQuantised().pack(x.data(), stretch, grid, usable ? Units() / range : 0.0f, stream.low, stream.high,
                           BytesOf(numbers) + NumberBytes(first));
  }

  void Unpack(const std::byte* numbers, uint32_t first, float factor, float range, bool add,
              std::span<float> sum) const {
    Pick_kQuantised().unpack(BytesOf(numbers) + NumberBytes(first), sum.size(), options_.grid,
                             factor * (range / Units()), add, sum.data());
  }

  // How many elements are beyond the ranges that `range(block)` gives; none of a block that is not finite.
  template <typename F>
  uint32_t Beyond(std::span<const float> x, F range) const {
    uint32_t found = 0;
    if (options_.clip > 0)
      EachBlock(static_cast<uint32_t>(x.size()), [&](uint32_t i, uint32_t first, uint32_t count) {
        const float limit = range(i, x.subspan(first, count));
        for (const float value : x.subspan(first, count)) found += std::fabs(value) > limit;
      });
    return found;
  }

  Stream64 StreamFor(const Draw& draw) const { return StreamOf(options_.seed, draw, 0, false); }
  // Of the range.
  float Units() const {
    return options_.grid.rounding == Rounding::kNatural ? 1.0f : static_cast<float>(options_.grid.levels);
  }
  const QuantisedOptions& options() const { return options_; }

 private:
  const QuantisedOptions options_;
};

class OwnScale : public ReencodeCodec {
 public:
  OwnScale(const CodecSpec& spec, uint32_t world, const QuantisedOptions& options)
      : ReencodeCodec(spec.text(), world), quantiser_(options) {}
  uint8_t id() const override { return quantiser_.options().id; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = quantiser_.NumberBytes(numel) + quantiser_.RangeBytes(numel);
    return {.payload = bytes, .result = bytes, .accumulator = uint64_t{numel} * sizeof(float)};
  }

  uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    const Stream64 stream = quantiser_.StreamFor(draw);
    std::byte* const ranges = payload + quantiser_.NumberBytes(numel);
    quantiser_.EachBlock(numel, [&](uint32_t i, uint32_t first, uint32_t count) {
      const float range = quantiser_.Range(x.subspan(first, count));
      std::memcpy(ranges + i * sizeof(range), &range, sizeof(range));
      quantiser_.Pack(x.subspan(first, count), first, stream, range, payload);
    });
    return Plan(numel).payload;
  }

  Status DecodeInto(Bytes payload, float factor, bool add, std::span<float> sum) const override {
    const auto numel = static_cast<uint32_t>(sum.size());
    if (payload.size() != Plan(numel).payload)
      return Status(Code::kCorrupt, spec() + ": a payload of the wrong length");
    const std::byte* const ranges = payload.data() + quantiser_.NumberBytes(numel);
    quantiser_.EachBlock(numel, [&](uint32_t i, uint32_t first, uint32_t count) {
      quantiser_.Unpack(payload.data(), first, factor, FloatAt(ranges, i), add, sum.subspan(first, count));
    });
    return Status();
  }

  uint32_t Clamped(std::span<const float> x, const Draw&, const std::byte*, std::byte*) const override {
    return quantiser_.Beyond(x, [this](uint32_t, std::span<const float> block) { return quantiser_.Range(block); });
  }

 private:
  const Quantiser quantiser_;
};

class SharedScale : public Codec {
 public:
  SharedScale(const CodecSpec& spec, uint32_t world, const QuantisedOptions& options)
      : Codec(spec.text(), world), quantiser_(options) {
    const uint64_t most = uint64_t{2} * options.grid.levels * world;
    width_ = most <= UINT8_MAX ? 1 : most <= UINT16_MAX ? 2 : 4;
  }
  uint8_t id() const override { return quantiser_.options().id; }
  Trait trait() const override { return Trait::kWidening; }

  CodecPlan Plan(uint32_t numel) const override {
    return {.prelude = quantiser_.RangeBytes(numel),
            .payload = quantiser_.NumberBytes(numel),
            .result = width_ * numel,
            .accumulator = uint64_t{width_} * numel};
  }

  void Prepare(std::span<const float> x, const Draw&, std::byte*, std::byte* prelude) const override {
    quantiser_.EachBlock(static_cast<uint32_t>(x.size()), [&](uint32_t i, uint32_t first, uint32_t count) {
      const float range = quantiser_.Range(x.subspan(first, count));
      std::memcpy(prelude + i * sizeof(range), &range, sizeof(range));
    });
  }

  uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    const Stream64 stream = quantiser_.StreamFor(draw);
    quantiser_.EachBlock(numel, [&](uint32_t i, uint32_t first, uint32_t count) {
      quantiser_.Pack(x.subspan(first, count), first, stream, FloatAt(agreed, i), payload);
    });
    return quantiser_.NumberBytes(numel);
  }

  void Residual(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte*, Bytes payload,
                float* residual) const override {
    if (residual != x.data()) std::memcpy(residual, x.data(), x.size_bytes());
    quantiser_.EachBlock(static_cast<uint32_t>(x.size()), [&](uint32_t i, uint32_t first, uint32_t count) {
      quantiser_.Unpack(payload.data(), first, -1.0f, FloatAt(agreed, i), true, {residual + first, count});
    });
  }

  void Reset(uint32_t numel, std::byte* accumulator) const override {
    std::memset(accumulator, 0, size_t{width_} * numel);
  }

  Status Accumulate(uint32_t numel, Bytes payload, std::byte*, std::byte* accumulator) const override {
    if (payload.size() != quantiser_.NumberBytes(numel))
      return Status(Code::kCorrupt, spec() + ": a payload of the wrong length");
    Pick_kQuantised().add(BytesOf(payload.data()), numel, quantiser_.options().grid.bits, width_, accumulator);
    return Status();
  }

  uint32_t Emit(uint32_t numel, uint32_t, const Draw&, std::byte*, std::byte* accumulator,
                std::byte* result) const override {
    std::memcpy(result, accumulator, size_t{width_} * numel);
    return width_ * numel;
  }

  Status Decode(Bytes result, uint32_t count, const Draw&, const std::byte* agreed, std::byte*, float factor,
                std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    if (result.size() != size_t{width_} * numel)
      return Status(Code::kCorrupt, spec() + ": a result of the wrong length");
    const uint32_t offset = quantiser_.options().grid.levels * count;  // each number was stored plus `levels`
    quantiser_.EachBlock(numel, [&](uint32_t i, uint32_t first, uint32_t elements) {
      Pick_kQuantised().spread(result.data() + size_t{width_} * first, elements, width_, offset,
                               factor * (FloatAt(agreed, i) / quantiser_.Units()), out.data() + first);
    });
    return Status();
  }

  uint32_t Clamped(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte*) const override {
    return quantiser_.Beyond(x, [agreed](uint32_t i, std::span<const float>) { return FloatAt(agreed, i); });
  }

 private:
  const Quantiser quantiser_;
  uint32_t width_ = 0;  // bytes of a sum
};

}  // namespace

Result<CodecPointer> MakeQuantised(CodecSpec& spec, uint32_t world, const QuantisedOptions& options) {
  const Status done = spec.Done();
  if (!done.ok()) return done;
  if (options.block % 128 != 0)
    return Status(Code::kInvalid, "codec " + spec.text() + ": block must be a multiple of 128");
  if (options.shared) return CodecPointer(std::make_shared<SharedScale>(spec, world, options));
  return CodecPointer(std::make_shared<OwnScale>(spec, world, options));
}

}  // namespace byteps_like
