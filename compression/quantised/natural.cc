// Powers of two, rounded stochastically: Horvath et al., "Natural Compression for Distributed Deep Learning" (MSML
// 2022). Payload: a word of signs per 32 elements, then a byte of exponent for each.
#include "compression/loops/natural.h"

#include "compression/loops.h"
#include "compression/quantised/onebit_loops.h"
#include "compression/registry.h"
#include "csrc/codec/random.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(NaturalLoops, kNatural)

namespace {

class Natural : public ReencodeCodec {
 public:
  Natural(const CodecSpec& spec, uint32_t world, uint64_t seed) : ReencodeCodec(spec.text(), world), seed_(seed) {}
  uint8_t id() const override { return 9; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = SignBytes(numel) + numel;
    return {.payload = bytes, .result = bytes, .accumulator = uint64_t{numel} * sizeof(float)};
  }

  uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    const Stream64 stream = StreamOf(seed_, draw, 0, false);
    Pick_kOnebit().pack(x.data(), numel, reinterpret_cast<uint32_t*>(payload));
    Pick_kNatural().pack(x.data(), numel, stream.low, stream.high,
                         reinterpret_cast<uint8_t*>(payload + SignBytes(numel)));
    return Plan(numel).payload;
  }

  Status DecodeInto(Bytes payload, float factor, bool add, std::span<float> sum) const override {
    const auto numel = static_cast<uint32_t>(sum.size());
    if (payload.size() != Plan(numel).payload) return Status(Code::kCorrupt, "natural: a payload of the wrong length");
    const auto* const exponents = reinterpret_cast<const uint8_t*>(payload.data() + SignBytes(numel));
    Pick_kNatural().unpack(reinterpret_cast<const uint32_t*>(payload.data()), exponents, numel, factor, add,
                           sum.data());
    return Status();
  }

 private:
  static uint32_t SignBytes(uint32_t numel) { return (numel + 31) / 32 * 4; }

  const uint64_t seed_;
};

}  // namespace

Result<CodecPointer> MakeNatural(CodecSpec& spec, uint32_t world) {
  const uint64_t seed = spec.Seed();
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<Natural>(spec, world, seed));
}

}  // namespace byteps_like
