// Tensor homomorphic compression: payloads that are summed as they are. Li et al., "THC: Accelerating Distributed Deep
// Learning Using Tensor Homomorphic Compression" (NSDI 2024); here with a norm per rotation block. The prelude is the
// largest norm of each block. Payload: codes, as compression/loops/codes.h lays them out; result: sums of the points
// they stand for, as compression/loops/thc.h does.
#include "compression/loops/thc.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "compression/loops.h"
#include "compression/quantised/rotation.h"
#include "compression/quantised/thc_table.h"
#include "compression/registry.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(ThcLoops, kThc)

namespace {

constexpr uint32_t kMostRotation = 32768;  // elements of a rotation block
enum Purpose : uint32_t { kSigns = 1, kRounding = 2 };

bool Usable(float norm) { return norm > 0 && norm <= std::numeric_limits<float>::max(); }

float NormAt(const std::byte* agreed, uint32_t number) {
  float norm;
  std::memcpy(&norm, agreed + number * sizeof(float), sizeof(norm));
  return norm;
}

class Thc : public Codec {
 public:
  Thc(const CodecSpec& spec, uint32_t world, const ThcPoints& table, uint64_t seed)
      : Codec(spec.text(), world), table_(table), wide_(table.wide(world)), seed_(seed) {}
  uint8_t id() const override { return 16; }
  Trait trait() const override { return Trait::kWidening; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t groups = RotationGroups(numel), result = groups * SumBytes();
    const uint64_t block = std::min(groups * kLeastRotation, kMostRotation);
    return {.prelude = RotationCount(numel, kMostRotation) * static_cast<uint32_t>(sizeof(float)),
            .payload = groups * CodeBytes(),
            .result = result,
            .dense = std::nullopt,
            .accumulator = result,
            .workspace = block * (sizeof(float) + 1)};  // and its points
  }

  void Prepare(std::span<const float> x, const Draw&, std::byte*, std::byte* prelude) const override {
    ForEachRotation(static_cast<uint32_t>(x.size()), kMostRotation, [&](const RotationBlock& at, uint32_t number) {
      auto norm = static_cast<float>(std::sqrt(Energy(x.subspan(at.begin, at.size))));
      if (std::isnan(norm)) norm = std::numeric_limits<float>::quiet_NaN();  // of all that there are, the same anywhere
      std::memcpy(prelude + number * sizeof(norm), &norm, sizeof(norm));
    });
  }

  uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    const Stream64 signs = Signs(draw), rounding = StreamOf(seed_, draw, kRounding, false);
    const uint32_t words[] = {rounding.low, rounding.high};
    auto* const block = reinterpret_cast<float*>(workspace);
    ForEachRotation(numel, kMostRotation, [&](const RotationBlock& at, uint32_t number) {
      const uint32_t first = at.begin / kLeastRotation, groups = at.padded / kLeastRotation;
      const float norm = NormAt(agreed, number), factor = NormalisingFactor(norm);
      auto* const codes = reinterpret_cast<uint32_t*>(payload + first * CodeBytes());
      if (!Usable(norm)) return static_cast<void>(std::memset(codes, 0, groups * CodeBytes()));
      ThcRamp ramps[16];
      const size_t count = table_.Ramps(norm, factor, ramps);
      Rotate(x, at, signs, factor, block);
      Pick_kThc().quantise(block, groups, ramps, count, table_.bits, words, first, codes);
    });
    return RotationGroups(numel) * CodeBytes();
  }

  // A block that is not finite leaves none: it would spoil all rounds that follow.
  void Residual(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                Bytes payload, float* residual) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    auto* const block = reinterpret_cast<float*>(workspace);
    auto* const points =
        reinterpret_cast<uint8_t*>(block + std::min(RotationGroups(numel) * kLeastRotation, kMostRotation));
    ForEachRotation(numel, kMostRotation, [&](const RotationBlock& at, uint32_t number) {
      const uint32_t first = at.begin / kLeastRotation, groups = at.padded / kLeastRotation;
      const float norm = NormAt(agreed, number);
      if (!Usable(norm)) return static_cast<void>(std::memset(residual + at.begin, 0, at.size * sizeof(float)));
      std::memset(points, 0, at.padded);
      const auto* const codes = reinterpret_cast<const uint32_t*>(payload.data() + first * CodeBytes());
      Pick_kThc().accumulate8(codes, groups, table_.bits, table_.points.data(), points);
      Pick_kThc().centre8(points, groups, static_cast<float>(table_.granularity), block);
      RotateBack(block, at, Signs(draw), Unit(norm, at, -1.0f), x.data() + at.begin, residual + at.begin);
    });
  }

  Status Decode(Bytes result, uint32_t count, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                float factor, std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    if (result.size() != Plan(numel).result) return Status(Code::kCorrupt, "thc: a result of the wrong length");
    if (count == 0 || count > world())
      return Status(Code::kCorrupt, "thc: a result of " + std::to_string(count) + " contributions");
    auto* const block = reinterpret_cast<float*>(workspace);
    const auto offset = static_cast<float>(count * table_.granularity);
    ForEachRotation(numel, kMostRotation, [&](const RotationBlock& at, uint32_t number) {
      const float norm = NormAt(agreed, number);
      if (!Usable(norm)) {
        const float all = norm == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
        std::fill_n(out.data() + at.begin, at.size, all);
        return;
      }
      Centre(result.data(), at, offset, block);
      RotateBack(block, at, Signs(draw), Unit(norm, at, factor), nullptr, out.data() + at.begin);
    });
    return Status();
  }

  void Reset(uint32_t numel, std::byte* accumulator) const override {
    std::memset(accumulator, 0, RotationGroups(numel) * SumBytes());
  }

  Status Accumulate(uint32_t numel, Bytes payload, std::byte*, std::byte* accumulator) const override {
    const uint32_t groups = RotationGroups(numel);
    if (payload.size() != groups * CodeBytes()) return Status(Code::kCorrupt, "thc: a payload of the wrong length");
    const auto* const codes = reinterpret_cast<const uint32_t*>(payload.data());
    const ThcLoops& loops = Pick_kThc();
    if (wide_)
      loops.accumulate16(codes, groups, table_.bits, table_.points.data(), reinterpret_cast<uint16_t*>(accumulator));
    else
      loops.accumulate8(codes, groups, table_.bits, table_.points.data(), reinterpret_cast<uint8_t*>(accumulator));
    return Status();
  }

  uint32_t Emit(uint32_t numel, uint32_t, const Draw&, std::byte*, std::byte* accumulator,
                std::byte* result) const override {
    const uint32_t bytes = RotationGroups(numel) * SumBytes();
    std::memcpy(result, accumulator, bytes);
    return bytes;
  }

  uint32_t Clamped(std::span<const float> x, const Draw& draw, const std::byte* agreed,
                   std::byte* workspace) const override {
    auto* const block = reinterpret_cast<float*>(workspace);
    size_t found = 0;
    ForEachRotation(static_cast<uint32_t>(x.size()), kMostRotation, [&](const RotationBlock& at, uint32_t number) {
      const float norm = NormAt(agreed, number), factor = NormalisingFactor(norm);
      if (!Usable(norm)) return;
      Rotate(x, at, Signs(draw), factor, block);
      found += Pick_kThc().beyond(block, at.padded, static_cast<float>(table_.limit * norm * factor));
    });
    return static_cast<uint32_t>(found);
  }

 private:
  uint32_t CodeBytes() const { return kLeastRotation / 8 * static_cast<uint32_t>(table_.bits); }  // of a group
  uint32_t SumBytes() const { return kLeastRotation * (wide_ ? 2 : 1); }
  Stream64 Signs(const Draw& draw) const { return StreamOf(seed_, draw, kSigns, true); }

  // The value of half a step of the grid after the rotation back.
  float Unit(float norm, const RotationBlock& at, float factor) const {
    return static_cast<float>(static_cast<double>(factor) * table_.limit * static_cast<double>(norm) /
                              (static_cast<double>(table_.granularity) * at.padded));
  }

  void Centre(const std::byte* result, const RotationBlock& at, float offset, float* block) const {
    const std::byte* const sums = result + at.begin / kLeastRotation * SumBytes();
    const uint32_t groups = at.padded / kLeastRotation;
    if (wide_)
      Pick_kThc().centre16(reinterpret_cast<const uint16_t*>(sums), groups, offset, block);
    else
      Pick_kThc().centre8(reinterpret_cast<const uint8_t*>(sums), groups, offset, block);
  }

  const ThcPoints table_;
  const bool wide_;  // sums of 16 bits
  const uint64_t seed_;
};

}  // namespace

Result<CodecPointer> MakeThc(CodecSpec& spec, uint32_t world) {
  const auto bits = static_cast<int>(spec.Integer("bits", 2, 4));
  const auto clamp = static_cast<int>(spec.Integer("clamp", 16, 64));
  const std::string name = spec.Text("table");
  const uint64_t seed = spec.Seed();
  const Status done = spec.Done();
  if (!done.ok()) return done;
  auto table = ThcPoints::Find(bits, clamp, name, world);
  if (!table.ok()) return table.status();
  return CodecPointer(std::make_shared<Thc>(spec, world, *table, seed));
}

}  // namespace byteps_like
