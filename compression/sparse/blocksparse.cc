// Blocks that aren't zero, and a bit for each block that says which: OmniReduce's blocks (Fei et al., "Efficient Sparse
// Collective Communication and its application to Accelerate Distributed Deep Learning", SIGCOMM 2021) as a message
// that stands for itself. Payload: how many blocks, a bit per block, the blocks one after another, the last one as
// short as it is. Where more than `dense` of the blocks aren't zero: kWholePartition, all elements; so is a sum that
// has all blocks.
#include <algorithm>

#include "compression/registry.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

class BlockSparse : public MergeCodec {
 public:
  BlockSparse(const CodecSpec& spec, uint32_t world, uint32_t block, double dense)
      : MergeCodec(spec.text(), world), block_(block), dense_(dense) {}
  uint8_t id() const override { return 19; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t most = kHead + 4 * WordsOf(Blocks(numel)) + 4 * numel;
    return {.payload = most, .result = most, .accumulator = UnionSum::Bytes(numel, Blocks(numel))};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    uint32_t* const bits = AsWords(payload + kHead);
    float* out = AsFloats(payload + kHead) + WordsOf(Blocks(numel));
    uint32_t stored = 0, copied = 0;
    for (uint32_t word = 0; word < WordsOf(Blocks(numel)); ++word) {
      if (word % kScanned == 0) Scan(x, word, bits + word);
      stored += std::popcount(bits[word]);
      if (IsDense(stored, Blocks(numel))) return StoreWhole(x, payload);
      // Blocks are copied while they are in a cache; not where it looks as if all elements were to be sent.
      const bool is_last = word + 1 == WordsOf(Blocks(numel));
      if (!is_last && IsDense(stored, 32 * (word + 1))) continue;
      for (; copied <= word; ++copied)
        EachBit(bits + copied, 32, [&](uint32_t bit) { out = Append(x.data(), 32 * copied + bit, numel, out); });
    }
    std::memcpy(payload, &stored, kHead);
    return static_cast<uint32_t>(reinterpret_cast<std::byte*>(out) - payload);
  }

  Status Decode(Bytes result, uint32_t, const Draw&, const std::byte*, std::byte*, float factor,
                std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    auto index = Check(numel, result);
    if (!index.ok()) return index.status();
    const SparseLoops& loops = Pick_kSparse();
    if (IsWhole(result)) {
      loops.scaled(AsFloats(result.data() + kHead), numel, factor, false, out.data());
      return Status();
    }
    const uint32_t* const bits = AsWords(result.data() + kHead);
    const float* values = AsFloats(result.data() + *index);
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
    UnionSum(accumulator, numel, Blocks(numel)).Clear(Blocks(numel));
  }

  void Add(uint32_t numel, Bytes begin, MergeCursor& cursor, std::byte* accumulator) const override {
    const UnionSum sum(accumulator, numel, Blocks(numel));
    const uint32_t* const bits = BitsOf(begin.data());
    const SparseLoops& loops = Pick_kSparse();
    while (cursor.unit != kNoUnit) {
      const uint32_t length = LengthOf(cursor.unit, numel);
      if (begin.size() - cursor.bytes < length * sizeof(float)) return;
      const float* const values = AsFloats(begin.data() + cursor.bytes);
      float* const to = sum.sums + size_t{cursor.unit} * block_;
      if (sum.IsFirst(cursor.unit))
        std::memcpy(to, values, length * sizeof(float));
      else
        loops.scaled(values, length, 1.0f, true, to);
      Step(bits, numel, cursor);
    }
  }

  uint32_t ResultBytes(uint32_t numel, const std::byte* accumulator) const override {
    const uint32_t* const wanted = UnionSum(accumulator, numel, Blocks(numel)).wanted;
    const uint32_t stored = CountBits(wanted, Blocks(numel));
    return stored == Blocks(numel) ? kHead + 4 * numel : PayloadBytes(wanted, stored, numel);
  }

  MergeCursor EmitIndex(uint32_t numel, const std::byte* accumulator, std::byte* result) const override {
    const uint32_t* const wanted = UnionSum(accumulator, numel, Blocks(numel)).wanted;
    const uint32_t stored = CountBits(wanted, Blocks(numel));
    const bool whole = stored == Blocks(numel);
    std::memcpy(result, whole ? &kWholePartition : &stored, kHead);
    if (whole) return {0, kHead};
    std::memcpy(result + kHead, wanted, size_t{WordsOf(Blocks(numel))} * 4);
    return {NextBit(wanted, 0, Blocks(numel)), BitmapEnd(numel)};
  }

  void EmitUntil(uint32_t numel, uint32_t unit, MergeCursor& cursor, const std::byte* accumulator,
                 std::byte* result) const override {
    const UnionSum sum(accumulator, numel, Blocks(numel));
    while (cursor.unit < std::min(unit, Blocks(numel))) {
      std::memcpy(result + cursor.bytes, sum.sums + size_t{cursor.unit} * block_,
                  LengthOf(cursor.unit, numel) * sizeof(float));
      Step(sum.wanted, numel, cursor);
    }
  }

 protected:
  Result<uint32_t> IndexBytes(uint32_t numel, Bytes begin) const override {
    return begin.size() < kHead || IsWhole(begin) ? kHead : BitmapEnd(numel);
  }

  Status CheckIndex(uint32_t numel, Bytes index, uint32_t bytes) const override {
    const auto corrupt = [](const char* what) { return CorruptPayload("blocksparse", what); };
    if (IsWhole(index)) return bytes == kHead + 4 * numel ? Status() : corrupt("a payload of the wrong length");
    const uint32_t blocks = Blocks(numel);
    const uint32_t* const bits = AsWords(index.data() + kHead);
    if ((bits[WordsOf(blocks) - 1] & ~LastWordMask(blocks)) != 0) return corrupt("bits set beyond the last block");
    const uint32_t stored = CountBits(bits, blocks);
    if (ReadWord(index.data()) != stored) return corrupt("its count is not its bitmap's");
    return bytes == PayloadBytes(bits, stored, numel) ? Status() : corrupt("a payload of the wrong length");
  }

  uint32_t Unite(uint32_t numel, Bytes index, std::byte* accumulator) const override {
    const UnionSum sum(accumulator, numel, Blocks(numel));
    if (IsWhole(index)) {
      sum.WantAll(Blocks(numel));
      return 0;
    }
    const uint32_t* const bits = AsWords(index.data() + kHead);
    for (uint32_t word = 0; word < WordsOf(Blocks(numel)); ++word) sum.wanted[word] |= bits[word];
    return NextBit(bits, 0, Blocks(numel));
  }

 private:
  static constexpr uint32_t kScanned = 4;  // words, before their blocks are copied

  uint32_t Blocks(uint32_t numel) const { return Rounded(numel, block_); }
  uint32_t LengthOf(uint32_t block, uint32_t numel) const { return std::min(block_, numel - block * block_); }
  uint32_t BitmapEnd(uint32_t numel) const { return kHead + 4 * WordsOf(Blocks(numel)); }
  static bool IsWhole(Bytes payload) { return ReadWord(payload.data()) == kWholePartition; }
  // nullptr: it has all blocks.
  static const uint32_t* BitsOf(const std::byte* payload) {
    return ReadWord(payload) == kWholePartition ? nullptr : AsWords(payload + kHead);
  }

  // `bits` are those of `stored` blocks.
  uint32_t PayloadBytes(const uint32_t* bits, uint32_t stored, uint32_t numel) const {
    const uint32_t last = Blocks(numel) - 1;
    const uint32_t missing = IsSet(bits, last) ? block_ - LengthOf(last, numel) : 0;
    return static_cast<uint32_t>(BitmapEnd(numel) + 4 * (uint64_t{stored} * block_ - missing));
  }

  // Past its block, to the next.
  void Step(const uint32_t* bits, uint32_t numel, MergeCursor& cursor) const {
    cursor.bytes += LengthOf(cursor.unit, numel) * sizeof(float);
    ++cursor.unit;
    if (cursor.unit >= Blocks(numel))
      cursor.unit = kNoUnit;
    else if (bits != nullptr)
      cursor.unit = NextBit(bits, cursor.unit, Blocks(numel));
  }

  bool IsDense(uint32_t stored, uint32_t blocks) const { return stored > dense_ * blocks; }

  // Words of the bitmap: kScanned, or what is left.
  void Scan(std::span<const float> x, uint32_t word, uint32_t* bits) const {
    const size_t begin = size_t{32} * word * block_, most = size_t{32} * kScanned * block_;
    Pick_kSparse().nonzero_blocks(x.data() + begin, std::min(most, x.size() - begin), block_, bits);
  }

  static uint32_t StoreWhole(std::span<const float> x, std::byte* out) {
    std::memcpy(out, &kWholePartition, kHead);
    std::memcpy(out + kHead, x.data(), x.size_bytes());
    return kHead + static_cast<uint32_t>(x.size_bytes());
  }

  float* Append(const float* from, uint32_t block, uint32_t numel, float* out) const {
    std::memcpy(out, from + size_t{block} * block_, LengthOf(block, numel) * sizeof(float));
    return out + LengthOf(block, numel);
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
