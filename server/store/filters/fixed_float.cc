// Numbers in 1 to 3 bytes each: which of equally spaced ones between the least and the greatest of the payload is next,
// up or down by chance, so that the mean is right. The least and the greatest themselves come through exactly.
//
// A payload: the least and the greatest finite number, in the rows' type; then a code per element, little-endian. The
// highest code is that of what is not finite, which comes out as NaN. Twin of byteps_like/store/filters/fixed_float.py,
// to the last bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "csrc/codec/random.h"
#include "server/store/filters/filters.h"

namespace byteps_like {
namespace {

constexpr uint32_t kPurpose = 0x666C6F61;  // of random numbers

class FixedFloat final : public PayloadFilter {
 public:
  explicit FixedFloat(CodecSpec& spec) : bytes_(static_cast<size_t>(spec.Integer("bytes", 1, 3))) {}

  Status Check(DType dtype) const override {
    if (dtype == DType::kFloat32 || dtype == DType::kFloat64) return {};
    return Status(Code::kInvalid, std::string("filter float takes float32 and float64, not ") + NameOf(dtype));
  }
  bool TakesRows() const override { return true; }
  size_t Most(DType dtype, size_t bytes) const override { return 2 * SizeOf(dtype) + bytes / SizeOf(dtype) * bytes_; }

  Result<size_t> Encode(DType dtype, const Draw& draw, std::span<const std::byte> in,
                        std::span<std::byte> out) const override {
    return dtype == DType::kFloat32 ? EncodeAs<float>(draw, in, out) : EncodeAs<double>(draw, in, out);
  }
  Result<size_t> Decode(DType dtype, std::span<const std::byte> in, std::span<std::byte> out) const override {
    return dtype == DType::kFloat32 ? DecodeAs<float>(in, out) : DecodeAs<double>(in, out);
  }

 private:
  uint32_t NotFinite() const { return (1u << (8 * bytes_)) - 1; }
  double Highest() const { return NotFinite() - 1; }  // code, of the greatest number

  template <typename T>
  Result<size_t> EncodeAs(const Draw& draw, std::span<const std::byte> in, std::span<std::byte> out) const {
    const size_t count = in.size() / sizeof(T);
    const T* const values = reinterpret_cast<const T*>(in.data());  // ShardMemory's buffers are aligned
    T range[2] = {0, 0};
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) continue;
      range[0] = any ? std::min(range[0], values[i]) : values[i];
      range[1] = any ? std::max(range[1], values[i]) : values[i];
      any = true;
    }
    for (T& one : range) one += T{0};  // never the negative zero, which is no less than the other
    std::memcpy(out.data(), range, sizeof range);
    const double low = 0.5 * double{range[0]}, span = 0.5 * double{range[1]} - low;
    const double steep = span > 0 ? Highest() / span : 0;
    const double scale = std::isfinite(steep) ? steep : 0;  // all are the same, but for what no type can divide
    const Stream64 stream = StreamOf(0, draw, kPurpose, false);
    std::byte* to = out.data() + sizeof range;
    for (size_t i = 0; i < count; ++i, to += bytes_) {
      uint32_t code = NotFinite();
      if (std::isfinite(values[i])) {
        const double chance = RandomWord(stream, static_cast<uint32_t>(i)) * 0x1p-32;
        code = static_cast<uint32_t>(std::min((0.5 * double{values[i]} - low) * scale + chance, Highest()));
      }
      for (size_t byte = 0; byte < bytes_; ++byte) to[byte] = static_cast<std::byte>(code >> (8 * byte));
    }
    return sizeof range + count * bytes_;
  }

  template <typename T>
  Result<size_t> DecodeAs(std::span<const std::byte> in, std::span<std::byte> out) const {
    T range[2];
    const size_t count = in.size() < sizeof range ? 0 : (in.size() - sizeof range) / bytes_;
    if (in.size() != sizeof range + count * bytes_ || count * sizeof(T) > out.size())
      return Status(Code::kCorrupt, "a payload of filter float has no whole numbers, or too many");
    std::memcpy(range, in.data(), sizeof range);
    if (!std::isfinite(range[0]) || !std::isfinite(range[1]) || range[0] > range[1])
      return Status(Code::kCorrupt, "a payload of filter float has no range");
    const double low = 0.5 * double{range[0]}, span = 0.5 * double{range[1]} - low;
    const std::byte* from = in.data() + sizeof range;
    T* const values = reinterpret_cast<T*>(out.data());
    for (size_t i = 0; i < count; ++i, from += bytes_) {
      uint32_t code = 0;
      for (size_t byte = 0; byte < bytes_; ++byte) code |= std::to_integer<uint32_t>(from[byte]) << (8 * byte);
      const double value = std::min(2 * (low + span * (code / Highest())), double{range[1]});
      values[i] = code == NotFinite() ? std::numeric_limits<T>::quiet_NaN()
                  : code == Highest() ? range[1]
                                      : static_cast<T>(value);
    }
    return count * sizeof(T);
  }

  const size_t bytes_;  // of a number
};

}  // namespace

Result<FilterPointer> MakeFixedFloat(CodecSpec& spec) { return MadeFilter<FixedFloat>(spec); }

}  // namespace byteps_like
