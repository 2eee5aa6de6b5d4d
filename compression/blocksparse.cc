// Blocks that aren't zero, and a bit for each block that says which: OmniReduce's blocks (Fei et al., "Efficient Sparse
// Collective Communication and its application to Accelerate Distributed Deep Learning", SIGCOMM 2021) as a message
// that stands for itself. Payload: how many blocks, a bit per block, the blocks one after another, the last one as
// short as it is. Where more than `dense` of the blocks would come: kWholePartition, all elements.
#include <algorithm>

#include "compression/registry.h"
#include "compression/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kHead = 4;

class BlockSparse : public Codec {
 public:
  BlockSparse(const CodecSpec& spec, uint32_t world, uint32_t block, double dense)
      : Codec(spec.text(), world), block_(block), dense_(dense) {}
  uint8_t id() const override { return 19; }
  Trait trait() const override { return Trait::kMerge; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t most = kHead + 4 * WordsOf(Blocks(numel)) + 4 * numel;
    return {.payload = most, .result = most, .accumulator = UnionSum::Bytes(numel, Blocks(numel))};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    uint32_t* const bits = AsWords(payload + kHead);
    Scan(x, bits);
    const uint32_t stored = CountBits(bits, Blocks(numel));
    std::memcpy(payload, &stored, kHead);
    if (IsDense(stored, Blocks(numel))) return StoreWhole(x.data(), numel, payload);
    float* out = AsFloats(payload + kHead) + WordsOf(Blocks(numel));
    EachBit(bits, Blocks(numel), [&](uint32_t block) { out = Append(x.data(), block, numel, out); });
    return static_cast<uint32_t>(reinterpret_cast<std::byte*>(out) - payload);
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
    const SparseLoops& loops = Pick_kSparse();
    if (IsWhole(result)) {
      loops.scaled(AsFloats(result.data() + kHead), numel, factor, false, out.data());
      return Status();
    }
    const uint32_t* const bits = AsWords(result.data() + kHead);
    const float* values = AsFloats(result.data() + kHead) + WordsOf(Blocks(numel));
    for (uint32_t block = 0; block < Blocks(numel); ++block) {
      float* const to = out.data() + size_t{block} * block_;
      if (IsSet(bits, block)) {
        loops.scaled(values, LengthOf(block, numel), factor, false, to);
        values += LengthOf(block, numel);
      } else {
        std::memset(to, 0, LengthOf(block, numel) * sizeof(float));
      }
    }
    return Status();
  }

  void Reset(uint32_t numel, std::byte* accumulator) const override {
    std::memset(UnionSum(accumulator, numel).bits, 0, size_t{WordsOf(Blocks(numel))} * 4);
  }

  Status Accumulate(uint32_t numel, Bytes payload, std::byte*, std::byte* accumulator) const override {
    const Status status = Check(payload, numel);
    if (!status.ok()) return status;
    const UnionSum sum(accumulator, numel);
    const float* values = AsFloats(payload.data() + kHead);
    const SparseLoops& loops = Pick_kSparse();
    const auto add = [&](uint32_t block) { values = Add(loops, sum, block, numel, values); };
    if (IsWhole(payload)) {
      for (uint32_t block = 0; block < Blocks(numel); ++block) add(block);
    } else {
      values += WordsOf(Blocks(numel));
      EachBit(AsWords(payload.data() + kHead), Blocks(numel), add);
    }
    return Status();
  }

  uint32_t Emit(uint32_t numel, uint32_t, const Draw&, std::byte*, std::byte* accumulator,
                std::byte* result) const override {
    const UnionSum sum(accumulator, numel);
    const uint32_t blocks = Blocks(numel);
    const uint32_t stored = CountBits(sum.bits, blocks);
    if (IsDense(stored, blocks)) {
      for (uint32_t block = 0; block < blocks; ++block)
        if (!IsSet(sum.bits, block)) std::memset(At(sum.sums, block), 0, LengthOf(block, numel) * sizeof(float));
      return StoreWhole(sum.sums, numel, result);
    }
    std::memcpy(result, &stored, kHead);
    std::memcpy(result + kHead, sum.bits, size_t{WordsOf(blocks)} * 4);
    float* out = AsFloats(result + kHead) + WordsOf(blocks);
    EachBit(sum.bits, blocks, [&](uint32_t block) { out = Append(sum.sums, block, numel, out); });
    return static_cast<uint32_t>(reinterpret_cast<std::byte*>(out) - result);
  }

 private:
  uint32_t Blocks(uint32_t numel) const { return Rounded(numel, block_); }
  uint32_t LengthOf(uint32_t block, uint32_t numel) const { return std::min(block_, numel - block * block_); }
  float* At(float* elements, uint32_t block) const { return elements + size_t{block} * block_; }
  bool IsDense(uint32_t stored, uint32_t blocks) const { return stored > dense_ * blocks; }
  static bool IsWhole(Bytes payload) { return ReadWord(payload.data()) == kWholePartition; }

  void Scan(std::span<const float> x, uint32_t* bits) const {
    const auto numel = static_cast<uint32_t>(x.size());
    const SparseLoops& loops = Pick_kSparse();
    uint32_t word = 0;
    for (uint32_t block = 0; block < Blocks(numel); ++block) {
      word |= uint32_t{loops.any(x.data() + size_t{block} * block_, LengthOf(block, numel))} << block % 32;
      if (block % 32 != 31 && block + 1 != Blocks(numel)) continue;
      bits[block / 32] = word;
      word = 0;
    }
  }

  static uint32_t StoreWhole(const float* x, uint32_t numel, std::byte* out) {
    std::memcpy(out, &kWholePartition, kHead);
    std::memcpy(out + kHead, x, size_t{numel} * sizeof(float));
    return kHead + 4 * numel;
  }

  float* Append(const float* from, uint32_t block, uint32_t numel, float* out) const {
    std::memcpy(out, from + size_t{block} * block_, LengthOf(block, numel) * sizeof(float));
    return out + LengthOf(block, numel);
  }

  const float* Add(const SparseLoops& loops, const UnionSum& sum, uint32_t block, uint32_t numel,
                   const float* values) const {
    const uint32_t length = LengthOf(block, numel);
    if (sum.Mark(block))
      std::memcpy(At(sum.sums, block), values, length * sizeof(float));
    else
      loops.scaled(values, length, 1.0f, true, At(sum.sums, block));
    return values + length;
  }

  Status Check(Bytes payload, uint32_t numel) const {
    const auto corrupt = [](const char* what) { return CorruptPayload("blocksparse", what); };
    const uint64_t values = uint64_t{4} * numel;
    if (payload.size() < kHead) return corrupt("a payload without a head");
    if (IsWhole(payload)) return payload.size() == kHead + values ? Status() : corrupt("a payload of the wrong length");
    const uint32_t blocks = Blocks(numel);
    const uint64_t begin = kHead + uint64_t{4} * WordsOf(blocks);
    if (payload.size() < begin) return corrupt("a payload shorter than its bitmap");
    const uint32_t* const bits = AsWords(payload.data() + kHead);
    if ((bits[WordsOf(blocks) - 1] & ~LastWordMask(blocks)) != 0) return corrupt("bits set beyond the last block");
    const uint32_t stored = CountBits(bits, blocks);
    if (ReadWord(payload.data()) != stored) return corrupt("its count is not its bitmap's");
    uint64_t elements = uint64_t{stored} * block_;
    if (IsSet(bits, blocks - 1)) elements -= block_ - LengthOf(blocks - 1, numel);
    return payload.size() == begin + 4 * elements ? Status() : corrupt("a payload of the wrong length");
  }

  const uint32_t block_;
  const double dense_;  // the share of blocks above which a bitmap isn't worth it
};

}  // namespace

Result<CodecPointer> MakeBlockSparse(CodecSpec& spec, uint32_t world) {
  const auto block = static_cast<uint32_t>(spec.Integer("block", 1, int64_t{1} << 20));
  const double dense = spec.Real("dense", 0, 1);
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<BlockSparse>(spec, world, block, dense));
}

}  // namespace byteps_like
