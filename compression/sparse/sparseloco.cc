// The largest elements of each chunk, their places in few bits and their values in two: the mean of the smaller and of
// the larger ones, by sign. After Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo" (2025, arXiv
// 2508.15706). Payload: the four values as fp32; places, ascending in each chunk; which of the four.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "compression/registry.h"
#include "compression/sparse/select.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kLanes = 16;
constexpr uint32_t kLevels = 4;
constexpr uint32_t kTable = kLevels * sizeof(float);
constexpr uint32_t kCodeBits = 2;

constexpr uint32_t BytesOf(uint64_t bits) { return static_cast<uint32_t>((bits + 7) / 8); }

// Numbers of a few bits each, one behind the other, the lowest bit first.
class BitWriter {
 public:
  BitWriter(std::byte* out, uint32_t width) : out_(out), width_(width) {}
  void Put(uint32_t number) {
    pending_ |= uint64_t{number} << held_;
    for (held_ += width_; held_ >= 8; held_ -= 8, pending_ >>= 8) *out_++ = static_cast<std::byte>(pending_);
  }
  void Finish() {
    if (held_ != 0) *out_++ = static_cast<std::byte>(pending_);
  }

 private:
  std::byte* out_;
  const uint32_t width_;
  uint64_t pending_ = 0;
  uint32_t held_ = 0;
};

class BitReader {
 public:
  BitReader(const std::byte* in, uint32_t width) : in_(in), width_(width) {}
  uint32_t Get() {
    for (; held_ < width_; held_ += 8) pending_ |= std::to_integer<uint64_t>(*in_++) << held_;
    const auto number = static_cast<uint32_t>(pending_ & ((uint64_t{1} << width_) - 1));
    pending_ >>= width_;
    held_ -= width_;
    return number;
  }

 private:
  const std::byte* in_;
  const uint32_t width_;
  uint64_t pending_ = 0;
  uint32_t held_ = 0;
};

// Sums in the order of byteps_like/compression/lanes.py.
class LaneSum {
 public:
  void Add(size_t index, double value) { lanes_[index % kLanes] += value; }
  double Total() const {
    double total = 0;
    for (const double lane : lanes_) total += lane;
    return total;
  }

 private:
  std::array<double, kLanes> lanes_{};
};

// Which of the four each value becomes.
class Coder {
 public:
  explicit Coder(std::span<const float> values) {
    LaneSum sum;
    for (size_t i = 0; i < values.size(); ++i) {
      sum.Add(i, std::fabs(static_cast<double>(values[i])));
      has_zeros_ |= values[i] == 0;
    }
    middle_ = static_cast<float>(sum.Total() / static_cast<double>(values.size()));
  }
  uint32_t operator()(float value) const {
    if (has_zeros_) return value == 0 ? 0 : value < 0 ? 1 : 2;
    return (value < 0 ? 2 : 0) + (std::fabs(value) > middle_ ? 1 : 0);
  }

 private:
  bool has_zeros_ = false;
  float middle_ = 0;
};

class SparseLoco : public ReencodeCodec {
 public:
  SparseLoco(const CodecSpec& spec, uint32_t world, uint32_t chunk, uint32_t keep)
      : ReencodeCodec(spec.text(), world),
        chunk_(chunk),
        keep_(keep),
        width_(std::max<uint32_t>(1, std::bit_width(chunk - 1))) {}
  uint8_t id() const override { return 21; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t size = kTable + PlaceBytes(numel) + BytesOf(uint64_t{Kept(numel)} * kCodeBits);
    return {.payload = size,
            .result = size,
            .accumulator = uint64_t{numel} * sizeof(float),
            .workspace = Selection::Bytes(std::min(chunk_, numel)) + uint64_t{Kept(numel)} * sizeof(float)};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte* workspace,
                  std::byte* payload) const override {
    const auto numel = static_cast<uint32_t>(x.size());
    float* const values = AsFloats(workspace + Selection::Bytes(std::min(chunk_, numel)));
    float* next = values;
    BitWriter places(payload + kTable, width_);
    for (uint32_t begin = 0; begin < numel; begin += chunk_) {
      const uint32_t length = std::min(chunk_, numel - begin), kept = KeptOf(length);
      const Selection selection(AsWords(workspace), length);
      SelectLargest(x.subspan(begin, length), kept, selection);
      for (uint32_t i = 0; i < kept; ++i) places.Put(selection.indices[i]);
      std::memcpy(next, selection.values, size_t{kept} * sizeof(float));
      next += kept;
    }
    places.Finish();
    WriteValues({values, Kept(numel)}, payload, payload + kTable + PlaceBytes(numel));
    return Plan(numel).payload;
  }

  Status DecodeInto(Bytes payload, float factor, bool add, std::span<float> sum) const override {
    const auto numel = static_cast<uint32_t>(sum.size());
    if (payload.size() != Plan(numel).payload) return CorruptPayload("sparseloco", "a payload of the wrong length");
    if (!add) std::memset(sum.data(), 0, sum.size_bytes());
    std::array<float, kLevels> table;
    std::memcpy(table.data(), payload.data(), kTable);
    for (float& level : table) level *= factor;
    BitReader places(payload.data() + kTable, width_);
    BitReader codes(payload.data() + kTable + PlaceBytes(numel), kCodeBits);
    for (uint32_t begin = 0; begin < numel; begin += chunk_) {
      const uint32_t length = std::min(chunk_, numel - begin);
      int64_t before = -1;
      for (uint32_t left = KeptOf(length); left > 0; --left) {
        const uint32_t place = places.Get();
        if (place >= length || place <= before)
          return CorruptPayload("sparseloco", "places that don't ascend, or beyond the end");
        sum[begin + place] += table[codes.Get()];
        before = place;
      }
    }
    return Status();
  }

 private:
  uint32_t KeptOf(uint32_t length) const {
    return std::max(1u, static_cast<uint32_t>(uint64_t{keep_} * length / chunk_));
  }
  uint32_t Kept(uint32_t numel) const {
    return numel / chunk_ * keep_ + (numel % chunk_ != 0 ? KeptOf(numel % chunk_) : 0);
  }
  uint32_t PlaceBytes(uint32_t numel) const { return BytesOf(uint64_t{Kept(numel)} * width_); }

  static void WriteValues(std::span<const float> values, std::byte* table, std::byte* codes) {
    const Coder coder(values);
    std::array<LaneSum, kLevels> sums;
    std::array<uint32_t, kLevels> counts{};
    BitWriter out(codes, kCodeBits);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t code = coder(values[i]);
      sums[code].Add(i, values[i]);
      ++counts[code];
      out.Put(code);
    }
    out.Finish();
    for (uint32_t level = 0; level < kLevels; ++level)
      AsFloats(table)[level] = static_cast<float>(sums[level].Total() / std::max(counts[level], 1u));
  }

  const uint32_t chunk_, keep_, width_;
};

}  // namespace

Result<CodecPointer> MakeSparseLoco(CodecSpec& spec, uint32_t world) {
  const auto chunk = static_cast<uint32_t>(spec.Integer("chunk", 1, int64_t{1} << 16));
  const auto keep = static_cast<uint32_t>(spec.Integer("keep", 1, std::max(chunk, 1u)));
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<SparseLoco>(spec, world, chunk, keep));
}

}  // namespace byteps_like
