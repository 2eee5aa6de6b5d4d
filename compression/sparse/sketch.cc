// A count sketch of what isn't zero, and a bit per element that says what: both sum as they are (add, or) in one phase
// and a fixed size, and the sum is taken apart again by peeling, exactly. Li et al., "Accelerating Distributed Deep
// Learning using Lossless Homomorphic Compression" (arXiv 2402.07529), in int32 modulo 2^32 instead of fp32: block
// fixed point, whose exponents are the prelude. Each element is added, with a sign, to one cell of each of three
// segments. Payload: the bits, the cells; where there would be as many cells as elements, the integers themselves.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "compression/registry.h"
#include "compression/sparse/sparse.h"
#include "csrc/codec/random.h"

namespace byteps_like {
namespace {

constexpr uint32_t kHashes = 3;
constexpr uint32_t kFewKeys = 2048;  // below it, random graphs keep cores at 1.3 cells a key
constexpr int8_t kNotFinite = 127;

// Of a block whose largest biased exponent is that, summed over up to 2^bits ranks.
struct FixedPoint {
  FixedPoint(int8_t exponent, uint32_t rank_bits)
      : shift(156 - static_cast<int>(rank_bits) - std::max(1, exponent + 128)), finite(exponent != kNotFinite) {}
  int32_t Quantise(float x) const {
    constexpr double kRound = 0x1.8p52;  // added and taken off: to the nearest whole number, even if between two
    return finite ? static_cast<int32_t>(static_cast<double>(x) * PowerOfTwo(shift) + kRound - kRound) : 0;
  }
  float Value(int32_t q) const {
    return finite ? static_cast<float>(q * PowerOfTwo(-shift)) : std::numeric_limits<float>::quiet_NaN();
  }
  static double PowerOfTwo(int exponent) { return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52); }

  const int shift;
  const bool finite;
};

// Where a key's value is: one cell per segment, and the sign there.
struct Hashes {
  Hashes(uint64_t seed, const Draw& draw, uint32_t segment) : segment(segment) {
    for (uint32_t j = 0; j < kHashes; ++j) streams[j] = StreamOf(seed, draw, j, true);
  }
  template <typename Visit>  // visit(cell, sign: all ones if negative)
  void Each(uint32_t key, Visit visit) const {
    for (uint32_t j = 0; j < kHashes; ++j) {
      const uint32_t word = RandomWord(streams[j], key);
      visit(j * segment + static_cast<uint32_t>(uint64_t{word} * segment >> 32), 0u - (word & 1u));
    }
  }

  std::array<Stream64, kHashes> streams;
  const uint32_t segment;
};

constexpr uint32_t Signed(uint32_t value, uint32_t sign) { return (value ^ sign) - sign; }

// A cell, and of the keys that are in it still: how many, and all of them by exclusive or.
struct Cell {
  uint32_t sum, keys, key;
};

class Sketch : public Codec {
 public:
  Sketch(const CodecSpec& spec, uint32_t world, uint32_t block, double density, uint64_t seed)
      : Codec(spec.text(), world),
        rank_bits_(std::bit_width(world - 1)),
        block_(block),
        density_(density),
        seed_(seed) {}
  uint8_t id() const override { return 18; }
  Trait trait() const override { return Trait::kWidening; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = 4 * (IndexWords(numel) + Cells(numel));
    return {.prelude = Rounded(numel, block_),
            .prelude_dtype = DType::kInt8,
            .prelude_op = Op::kMax,
            .payload = bytes,
            .result = bytes,
            .accumulator = bytes,
            .workspace = IsPlain(numel) ? 0 : uint64_t{Cells(numel)} * (sizeof(Cell) + sizeof(uint32_t))};
  }

  void Prepare(std::span<const float> x, const Draw&, std::byte*, std::byte* prelude) const override {
    for (size_t begin = 0; begin < x.size(); begin += block_) {
      const size_t length = std::min<size_t>(block_, x.size() - begin);
      const uint32_t exponent = Pick_kSparse().largest(x.data() + begin, length) >> 23;
      *prelude++ = static_cast<std::byte>(exponent - 128);
    }
  }

  uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte*,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    uint32_t* const bits = AsWords(payload);
    uint32_t* const cells = bits + IndexWords(numel);
    if (IsPlain(numel)) {
      EachBlock(numel, agreed, [&](uint32_t i, uint32_t end, const FixedPoint& point) {
        for (; i < end; ++i) cells[i] = static_cast<uint32_t>(point.Quantise(x[i]));
      });
    } else {
      Pick_kSparse().nonzero(x.data(), numel, bits);
      std::memset(cells, 0, size_t{Cells(numel)} * 4);
      const Hashes hashes(seed_, draw, Segment(numel));
      EachBit(bits, numel, [&](uint32_t key) {
        const auto q = static_cast<uint32_t>(PointOf(agreed, key).Quantise(x[key]));
        hashes.Each(key, [&](uint32_t cell, uint32_t sign) { cells[cell] += Signed(q, sign); });
      });
    }
    return Plan(numel).payload;
  }

  void Residual(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte*, Bytes,
                float* residual) const override {
    EachBlock(static_cast<uint32_t>(x.size()), agreed, [&](uint32_t i, uint32_t end, const FixedPoint& point) {
      for (; i < end; ++i) residual[i] = x[i] - point.Value(point.Quantise(x[i]));
    });
  }

  Status Decode(Bytes result, uint32_t, const Draw& draw, const std::byte* agreed, std::byte* workspace, float factor,
                std::span<float> out) const override {
    const auto numel = static_cast<uint32_t>(out.size());
    if (result.size() != Plan(numel).result) return CorruptPayload("sketch", "a payload of the wrong length");
    const uint32_t* const bits = AsWords(result.data());
    if (IsPlain(numel)) {
      EachBlock(numel, agreed, [&](uint32_t i, uint32_t end, const FixedPoint& point) {
        for (; i < end; ++i) out[i] = 0.0f + factor * point.Value(static_cast<int32_t>(bits[i]));
      });
      return Status();
    }
    if ((bits[IndexWords(numel) - 1] & ~LastWordMask(numel)) != 0)
      return CorruptPayload("sketch", "bits set beyond the last element");
    std::memset(out.data(), 0, out.size_bytes());
    return Peel(bits, numel, draw, reinterpret_cast<Cell*>(workspace), [&](uint32_t key, uint32_t sum) {
      out[key] = 0.0f + factor * PointOf(agreed, key).Value(static_cast<int32_t>(sum));
    });
  }

  void Reset(uint32_t numel, std::byte* accumulator) const override {
    std::memset(accumulator, 0, Plan(numel).accumulator);
  }

  Status Accumulate(uint32_t numel, Bytes payload, std::byte*, std::byte* accumulator) const override {
    if (payload.size() != Plan(numel).payload) return CorruptPayload("sketch", "a payload of the wrong length");
    const uint32_t index = IndexWords(numel), all = index + Cells(numel);
    const uint32_t* const from = AsWords(payload.data());
    uint32_t* const to = AsWords(accumulator);
    for (uint32_t i = 0; i < index; ++i) to[i] |= from[i];
    for (uint32_t i = index; i < all; ++i) to[i] += from[i];
    return Status();
  }

  uint32_t Emit(uint32_t numel, uint32_t, const Draw&, std::byte*, std::byte* accumulator,
                std::byte* result) const override {
    std::memcpy(result, accumulator, Plan(numel).result);
    return Plan(numel).result;
  }

 private:
  uint32_t Keys(uint32_t numel) const { return std::max(1u, static_cast<uint32_t>(density_ * numel)); }
  uint64_t SketchSegment(uint32_t numel) const {
    const uint64_t keys = Keys(numel);
    return keys < kFewKeys ? (7 * keys + 11) / 12 + 64 : (13 * keys + 29) / 30;
  }
  bool IsPlain(uint32_t numel) const { return kHashes * SketchSegment(numel) >= numel; }
  uint32_t Segment(uint32_t numel) const { return static_cast<uint32_t>(SketchSegment(numel)); }
  uint32_t Cells(uint32_t numel) const { return IsPlain(numel) ? numel : kHashes * Segment(numel); }
  uint32_t IndexWords(uint32_t numel) const { return IsPlain(numel) ? 0 : WordsOf(numel); }

  FixedPoint PointOf(const std::byte* agreed, uint32_t i) const {
    return FixedPoint(static_cast<int8_t>(agreed[i / block_]), rank_bits_);
  }

  // visit(begin, end, its point) for each block.
  template <typename Visit>
  void EachBlock(uint32_t numel, const std::byte* agreed, Visit visit) const {
    for (uint32_t begin = 0; begin < numel; begin += std::min(block_, numel - begin))
      visit(begin, begin + std::min(block_, numel - begin), PointOf(agreed, begin));
  }

  // A cell with one key tells its value, which is then taken from the key's other cells; put(key, sum) for each.
  template <typename Put>
  Status Peel(const uint32_t* bits, uint32_t numel, const Draw& draw, Cell* cells, Put put) const {
    const uint32_t count = Cells(numel);
    auto* const single = reinterpret_cast<uint32_t*>(cells + count);  // each cell is there once at most
    const Hashes hashes(seed_, draw, Segment(numel));
    for (uint32_t i = 0; i < count; ++i) cells[i] = {bits[IndexWords(numel) + i], 0, 0};
    uint32_t left = CountBits(bits, numel), singles = 0;
    EachBit(bits, numel, [&](uint32_t key) {
      hashes.Each(key, [&](uint32_t cell, uint32_t) {
        ++cells[cell].keys;
        cells[cell].key ^= key;
      });
    });
    for (uint32_t i = 0; i < count; ++i)
      if (cells[i].keys == 1) single[singles++] = i;
    while (singles != 0) {
      const uint32_t from = single[--singles];
      if (cells[from].keys != 1) continue;
      const uint32_t key = cells[from].key;
      uint32_t value = 0;
      hashes.Each(key, [&](uint32_t cell, uint32_t sign) {
        if (cell == from) value = Signed(cells[cell].sum, sign);
      });
      hashes.Each(key, [&](uint32_t cell, uint32_t sign) {
        cells[cell].sum -= Signed(value, sign);
        cells[cell].key ^= key;
        if (--cells[cell].keys == 1) single[singles++] = cell;
      });
      put(key, value);
      --left;
    }
    if (left != 0) return Overfull(CountBits(bits, numel), left, numel);
    const bool clean = std::all_of(cells, cells + count, [](const Cell& cell) { return cell.sum == 0; });
    return clean ? Status() : CorruptPayload("sketch", "cells that no element accounts for");
  }

  Status Overfull(uint32_t keys, uint32_t left, uint32_t numel) const {
    return Status(Code::kCapacity,
                  "sketch: " + std::to_string(keys) + " of " + std::to_string(numel) +
                      " elements aren't zero on all ranks together, density=" + std::to_string(density_) +
                      " has room for " + std::to_string(Keys(numel)) + "; " + std::to_string(left) +
                      " can't be told apart: raise density, or take the codec bitmap");
  }

  const uint32_t rank_bits_;
  const uint32_t block_;
  const double density_;
  const uint64_t seed_;
};

}  // namespace

Result<CodecPointer> MakeSketch(CodecSpec& spec, uint32_t world) {
  const auto block = static_cast<uint32_t>(spec.Integer("block", 1, int64_t{1} << 20));
  const double density = spec.Real("density", 0, 1);
  const uint64_t seed = spec.Seed();
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<Sketch>(spec, world, block, density, seed));
}

}  // namespace byteps_like
