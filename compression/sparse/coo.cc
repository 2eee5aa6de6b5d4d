// Indices and values of what isn't zero: the key-value form of OmniReduce (Fei et al., SIGCOMM 2021), as one message.
// Payload: how many, the indices, ascending, the values. Where they would take more than all elements: kWholePartition,
// all elements.
#include <algorithm>

#include "compression/registry.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

class Coo : public MergeCodec {
 public:
  Coo(const CodecSpec& spec, uint32_t world) : MergeCodec(spec.text(), world) {}
  uint8_t id() const override { return 20; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t most = kHead + 4 * numel;
    return {.payload = most, .result = most, .accumulator = UnionSum::Bytes(numel, numel)};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    uint32_t* const indices = AsWords(payload + kHead);
    const auto count = static_cast<uint32_t>(Pick_kSparse().at_least(x.data(), numel, 1, indices, nullptr));
    std::memcpy(payload, IsDense(count, numel) ? &kWholePartition : &count, kHead);
    if (IsDense(count, numel)) {
      std::memcpy(payload + kHead, x.data(), x.size_bytes());
      return kHead + 4 * numel;
    }
    float* const values = AsFloats(payload + kHead) + count;
    for (uint32_t i = 0; i < count; ++i) values[i] = x[indices[i]];
    return kHead + 8 * count;
  }

  Status Decode(Bytes result, uint32_t, const Draw&, const std::byte*, std::byte*, float factor,
                std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    auto index = Check(numel, result);
    if (!index.ok()) return index.status();
    const float* values = AsFloats(result.data() + *index);
    if (IsWhole(result)) {
      Pick_kSparse().scaled(values, numel, factor, false, out.data());
      return Status();
    }
    std::memset(out.data(), 0, out.size_bytes());
    for (const uint32_t i : Indices(result)) out[i] = 0.0f + factor * *values++;
    return Status();
  }

  void Reset(uint32_t numel, std::byte* accumulator) const override {
    UnionSum(accumulator, numel, numel).Clear(numel);
  }

  void Add(uint32_t numel, Bytes begin, MergeCursor& cursor, std::byte* accumulator) const override {
    if (cursor.unit == kNoUnit) return;
    const UnionSum sum(accumulator, numel, numel);
    const uint32_t* const indices = IsWhole(begin) ? nullptr : AsWords(begin.data() + kHead);
    const uint32_t last = indices == nullptr ? numel : ReadWord(begin.data());  // of its elements, and what is done:
    const uint32_t first = indices == nullptr ? cursor.unit : (cursor.bytes - kHead) / 4 - last;
    const uint32_t until = first + static_cast<uint32_t>((begin.size() - cursor.bytes) / 4);
    const float* const values = AsFloats(begin.data() + cursor.bytes);
    for (uint32_t k = first; k < until; ++k) {
      const uint32_t i = indices == nullptr ? k : indices[k];
      sum.sums[i] = sum.IsFirst(i) ? values[k - first] : sum.sums[i] + values[k - first];
    }
    cursor.bytes += 4 * (until - first);
    cursor.unit = until == last ? kNoUnit : indices == nullptr ? until : indices[until];
  }

  uint32_t ResultBytes(uint32_t numel, const std::byte* accumulator) const override {
    const uint32_t count = CountBits(UnionSum(accumulator, numel, numel).wanted, numel);
    return kHead + (IsDense(count, numel) ? 4 * numel : 8 * count);
  }

  MergeCursor EmitIndex(uint32_t numel, const std::byte* accumulator, std::byte* result) const override {
    const uint32_t* const wanted = UnionSum(accumulator, numel, numel).wanted;
    const uint32_t count = CountBits(wanted, numel);
    std::memcpy(result, IsDense(count, numel) ? &kWholePartition : &count, kHead);
    if (IsDense(count, numel)) return {0, kHead};
    uint32_t* indices = AsWords(result + kHead);
    EachBit(wanted, numel, [&](uint32_t i) { *indices++ = i; });
    return {NextBit(wanted, 0, numel), kHead + 4 * count};
  }

  // Of a whole result also what is in no index.
  void EmitUntil(uint32_t numel, uint32_t unit, MergeCursor& cursor, const std::byte* accumulator,
                 std::byte* result) const override {
    const UnionSum sum(accumulator, numel, numel);
    const bool whole = IsWhole({result, kHead});
    while (cursor.unit < std::min(unit, numel)) {
      const float value = IsSet(sum.wanted, cursor.unit) ? sum.sums[cursor.unit] : 0.0f;
      std::memcpy(result + cursor.bytes, &value, sizeof(value));
      const uint32_t next = cursor.unit + 1;
      cursor = {whole ? next : NextBit(sum.wanted, next, numel), cursor.bytes + 4};
    }
  }

 protected:
  Result<uint32_t> IndexBytes(uint32_t numel, Bytes begin) const override {
    if (begin.size() < kHead || IsWhole(begin)) return kHead;
    if (ReadWord(begin.data()) > numel) return CorruptPayload("coo", "more elements than there are");
    return kHead + 4 * ReadWord(begin.data());
  }

  Status CheckIndex(uint32_t numel, Bytes index, uint32_t bytes) const override {
    const bool whole = IsWhole(index);
    if (bytes != (whole ? kHead + 4 * numel : kHead + 8 * ReadWord(index.data())))
      return CorruptPayload("coo", "a payload of the wrong length");
    if (whole || AreIndices(Indices(index), numel)) return Status();
    return CorruptPayload("coo", "indices that don't ascend, or beyond the end");
  }

  uint32_t Unite(uint32_t numel, Bytes index, std::byte* accumulator) const override {
    const UnionSum sum(accumulator, numel, numel);
    if (IsWhole(index)) {
      sum.WantAll(numel);
      return 0;
    }
    const std::span<const uint32_t> indices = Indices(index);
    for (const uint32_t i : indices) sum.wanted[i / 32] |= 1u << i % 32;
    return indices.empty() ? kNoUnit : indices.front();
  }

 private:
  static bool IsDense(uint32_t count, uint32_t numel) { return uint64_t{2} * count > numel; }
  static bool IsWhole(Bytes payload) { return ReadWord(payload.data()) == kWholePartition; }
  static std::span<const uint32_t> Indices(Bytes payload) {
    return {AsWords(payload.data() + kHead), ReadWord(payload.data())};
  }
};

}  // namespace

Result<CodecPointer> MakeCoo(CodecSpec& spec, uint32_t world) {
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<Coo>(spec, world));
}

}  // namespace byteps_like
