// Indices and values of what isn't zero: the key-value form of OmniReduce (Fei et al., SIGCOMM 2021), as one message.
// Payload: how many, the indices, ascending, the values. Where they would take more than all elements: kWholePartition,
// all elements.
#include <algorithm>

#include "compression/registry.h"
#include "compression/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kHead = 4;

class Coo : public Codec {
 public:
  Coo(const CodecSpec& spec, uint32_t world) : Codec(spec.text(), world) {}
  uint8_t id() const override { return 20; }
  Trait trait() const override { return Trait::kMerge; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t most = kHead + 4 * numel;
    return {.payload = most, .result = most, .accumulator = UnionSum::Bytes(numel, numel)};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    uint32_t* const indices = AsWords(payload + kHead);
    const auto count = static_cast<uint32_t>(Pick_kSparse().at_least(x.data(), numel, 1, indices, nullptr));
    if (IsDense(count, numel)) return StoreWhole(x.data(), numel, payload);
    return StoreValues(x.data(), count, payload);
  }

  void Residual(std::span<const float> x, const Draw&, const std::byte*, std::byte*, Bytes,
                float* residual) const override {
    std::memset(residual, 0, x.size_bytes());
  }

  Status Decode(Bytes result, uint32_t, const Draw&, const std::byte*, std::byte*, float factor,
                std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    const Status status = Check(result, numel);
    if (!status.ok()) return status;
    const float* values = AsFloats(result.data() + kHead);
    if (IsWhole(result)) {
      Pick_kSparse().scaled(values, numel, factor, false, out.data());
      return Status();
    }
    std::memset(out.data(), 0, out.size_bytes());
    const std::span<const uint32_t> indices = Indices(result);
    values += indices.size();
    for (const uint32_t i : indices) out[i] = 0.0f + factor * *values++;
    return Status();
  }

  void Reset(uint32_t numel, std::byte* accumulator) const override {
    std::memset(UnionSum(accumulator, numel).bits, 0, size_t{WordsOf(numel)} * 4);
  }

  Status Accumulate(uint32_t numel, Bytes payload, std::byte*, std::byte* accumulator) const override {
    const Status status = Check(payload, numel);
    if (!status.ok()) return status;
    const UnionSum sum(accumulator, numel);
    const float* values = AsFloats(payload.data() + kHead);
    const auto add = [&](uint32_t i) {
      const float value = *values++;
      sum.sums[i] = sum.Mark(i) ? value : sum.sums[i] + value;
    };
    if (IsWhole(payload)) {
      for (uint32_t i = 0; i < numel; ++i) add(i);
    } else {
      const std::span<const uint32_t> indices = Indices(payload);
      values += indices.size();
      for (const uint32_t i : indices) add(i);
    }
    return Status();
  }

  uint32_t Emit(uint32_t numel, uint32_t, const Draw&, std::byte*, std::byte* accumulator,
                std::byte* result) const override {
    const UnionSum sum(accumulator, numel);
    const uint32_t count = CountBits(sum.bits, numel);
    if (IsDense(count, numel)) {
      for (uint32_t i = 0; i < numel; ++i)
        if (!IsSet(sum.bits, i)) sum.sums[i] = 0;
      return StoreWhole(sum.sums, numel, result);
    }
    uint32_t* indices = AsWords(result + kHead);
    EachBit(sum.bits, numel, [&](uint32_t i) { *indices++ = i; });
    return StoreValues(sum.sums, count, result);
  }

 private:
  static bool IsDense(uint32_t count, uint32_t numel) { return uint64_t{2} * count > numel; }
  static bool IsWhole(Bytes payload) { return ReadWord(payload.data()) == kWholePartition; }
  static std::span<const uint32_t> Indices(Bytes payload) {
    return {AsWords(payload.data() + kHead), ReadWord(payload.data())};
  }

  static uint32_t StoreWhole(const float* x, uint32_t numel, std::byte* out) {
    std::memcpy(out, &kWholePartition, kHead);
    std::memcpy(out + kHead, x, size_t{numel} * sizeof(float));
    return kHead + 4 * numel;
  }

  // Behind `count` indices that are there already.
  static uint32_t StoreValues(const float* x, uint32_t count, std::byte* out) {
    std::memcpy(out, &count, kHead);
    const uint32_t* const indices = AsWords(out + kHead);
    float* const values = AsFloats(out + kHead) + count;
    for (uint32_t i = 0; i < count; ++i) values[i] = x[indices[i]];
    return kHead + 8 * count;
  }

  static Status Check(Bytes payload, uint32_t numel) {
    if (payload.size() < kHead) return CorruptPayload("coo", "a payload without a head");
    const uint32_t count = ReadWord(payload.data());
    const bool whole = count == kWholePartition;
    if (payload.size() != kHead + (whole ? uint64_t{4} * numel : uint64_t{8} * count))
      return CorruptPayload("coo", "a payload of the wrong length");
    if (whole || AreIndices(Indices(payload), numel)) return Status();
    return CorruptPayload("coo", "indices that don't ascend, or beyond the end");
  }
};

}  // namespace

Result<CodecPointer> MakeCoo(CodecSpec& spec, uint32_t world) {
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<Coo>(spec, world));
}

}  // namespace byteps_like
