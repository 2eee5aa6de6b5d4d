// EDEN, and with one bit DRIVE: a random rotation makes coordinates normal, each becomes the nearest of the 2^bits best
// points for that, and a scale makes what comes out right in the direction of what went in, so that it is unbiased.
// Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation" (NeurIPS 2021) and "EDEN: Communication-Efficient and
// Robust Distributed Mean Estimation for Federated Learning" (ICML 2022). Payload: the stream of the rotation's signs
// (8 bytes), a scale per block, codes as compression/loops/codes.h lays them out.
#include "compression/loops/eden.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "compression/loops.h"
#include "compression/quantised/rotation.h"
#include "compression/registry.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(EdenLoops, kEden)

namespace {

constexpr uint32_t kMostOfBlock = 4096;  // elements of a block: it stays in the L1 cache, and fits on a stack
constexpr uint32_t kSignStream = 1;      // the purpose of the stream

// By bits, the magnitudes of the points that make the mean square error of a standard normal number least (Lloyd-Max),
// and the numbers half-way between them.
constexpr float kMagnitudes[4][8] = {
    {0.7978845608028654f},
    {0.45278003463649197f, 1.510417608499095f},
    {0.2450941789442217f, 0.7560052812058766f, 1.3439092785049997f, 2.1519457045369847f},
    {0.12839502985114706f, 0.3880482994902907f, 0.6567591185324636f, 0.9423404564869622f, 1.256231197347176f,
     1.6180463860218808f, 2.069017226531384f, 2.732589570995159f},
};
constexpr double kLimits[4][7] = {
    {},
    {0.9815988215677935},
    {0.5005497300750492, 1.0499572798554382, 1.7479274915209921},
    {0.2582216646707189, 0.5224037090113771, 0.7995497875097128, 1.099285826917069, 1.4371387916845284,
     1.8435318062766324, 2.4008033987632715},
};

class Eden : public ReencodeCodec {
 public:
  Eden(const CodecSpec& spec, uint32_t world, int bits, uint64_t seed)
      : ReencodeCodec(spec.text(), world), bits_(bits), seed_(seed) {}
  uint8_t id() const override { return 15; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = CodesAt(numel) + RotationGroups(numel) * CodeBytes();
    return {.payload = bytes, .result = bytes, .dense = std::nullopt, .accumulator = uint64_t{numel} * sizeof(float)};
  }

  uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    const Stream64 signs = StreamOf(seed_, draw, kSignStream, false);
    std::memcpy(payload, &signs, sizeof(signs));
    std::byte* const codes = payload + CodesAt(numel);
    ForEachRotation(numel, kMostOfBlock, [&](const RotationBlock& at, uint32_t number) {
      const float scale = EncodeBlock(x, at, signs, codes + at.begin / kLeastRotation * CodeBytes());
      std::memcpy(payload + sizeof(signs) + number * sizeof(scale), &scale, sizeof(scale));
    });
    return CodesAt(numel) + RotationGroups(numel) * CodeBytes();
  }

  Status DecodeInto(Bytes payload, float factor, bool add, std::span<float> sum) const override {
    const auto numel = static_cast<uint32_t>(sum.size());
    if (payload.size() != Plan(numel).payload) return Status(Code::kCorrupt, "eden: a payload of the wrong length");
    Stream64 signs;
    std::memcpy(&signs, payload.data(), sizeof(signs));
    const std::byte* const codes = payload.data() + CodesAt(numel);
    ForEachRotation(numel, kMostOfBlock, [&](const RotationBlock& at, uint32_t number) {
      float scale;
      std::memcpy(&scale, payload.data() + sizeof(signs) + number * sizeof(scale), sizeof(scale));
      alignas(64) float block[kMostOfBlock];
      Pick_kEden().points(reinterpret_cast<const uint32_t*>(codes + at.begin / kLeastRotation * CodeBytes()),
                          at.padded / kLeastRotation, bits_, kMagnitudes[bits_ - 1], block);
      float* const out = sum.data() + at.begin;
      RotateBack(block, at, signs, factor * scale, add ? out : nullptr, out);
    });
    return Status();
  }

 private:
  static uint32_t CodesAt(uint32_t numel) {
    return static_cast<uint32_t>(sizeof(Stream64) + RotationCount(numel, kMostOfBlock) * sizeof(float));
  }
  uint32_t CodeBytes() const { return kLeastRotation / 8 * static_cast<uint32_t>(bits_); }  // of a group

  // Returns the scale: |x|^2 / <H D x, points>, or 0 for zeros, NaN for what is not finite.
  float EncodeBlock(std::span<const float> x, const RotationBlock& at, const Stream64& signs, std::byte* codes) const {
    const uint32_t groups = at.padded / kLeastRotation;
    const double energy = Energy(x.subspan(at.begin, at.size));
    const auto norm = static_cast<float>(std::sqrt(energy));
    if (!(norm > 0 && norm <= std::numeric_limits<float>::max())) {
      std::memset(codes, 0, groups * CodeBytes());
      return norm == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    const float factor = NormalisingFactor(norm);
    alignas(64) float block[kMostOfBlock];
    Rotate(x, at, signs, factor, block);
    float limits[7];
    for (int k = 0; k < 7; ++k)
      limits[k] = static_cast<float>(kLimits[bits_ - 1][k] * (static_cast<double>(norm) * static_cast<double>(factor)));
    double lanes[16] = {};
    Pick_kEden().quantise(block, groups, bits_, limits, kMagnitudes[bits_ - 1], reinterpret_cast<uint32_t*>(codes),
                          lanes);
    double product = 0;
    for (const double lane : lanes) product += lane;
    return static_cast<float>(energy * static_cast<double>(factor) / product);
  }

  const int bits_;
  const uint64_t seed_;
};

}  // namespace

Result<CodecPointer> MakeEden(CodecSpec& spec, uint32_t world) {
  const auto bits = static_cast<int>(spec.Integer("bits", 1, 4));
  const uint64_t seed = spec.Seed();
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<Eden>(spec, world, bits, seed));
}

}  // namespace byteps_like
