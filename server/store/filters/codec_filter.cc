#include "server/store/filters/codec_filter.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "compression/registry.h"
#include "csrc/codec/random.h"
#include "csrc/wire/bytes.h"

namespace byteps_like {
namespace {

constexpr uint32_t kNumberPurpose = 0x636F6465;  // of the number in a payload
constexpr size_t kNumber = sizeof(uint64_t);

constexpr size_t Aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Memory of this thread for several uses at a time, each aligned to 64 bytes; kept, since the next contribution needs
// as much.
template <size_t kUses>
std::array<std::byte*, kUses> ScratchFor(const std::array<uint64_t, kUses>& bytes) {
  constexpr size_t kAlignment = 64;
  thread_local std::vector<std::byte> memory;
  size_t total = kAlignment;
  for (const uint64_t use : bytes) total += Aligned(use, kAlignment);
  if (memory.size() < total) memory.resize(total);
  std::array<std::byte*, kUses> found;
  std::byte* place =
      memory.data() + (kAlignment - reinterpret_cast<uintptr_t>(memory.data()) % kAlignment) % kAlignment;
  for (size_t use = 0; use < kUses; place += Aligned(bytes[use++], kAlignment)) found[use] = place;
  return found;
}

class CodecFilter final : public PayloadFilter {
 public:
  explicit CodecFilter(CodecPointer codec) : codec_(std::move(codec)) {}

  Status Check(DType dtype) const override {
    if (dtype == DType::kFloat32 || dtype == DType::kFloat64) return {};
    return Status(Code::kInvalid, "codec " + codec_->spec() + " takes float32 and float64, not " + NameOf(dtype));
  }
  bool TakesRows() const override { return true; }
  bool OfValues() const override { return false; }  // codecs are made for gradients
  size_t Most(DType dtype, size_t bytes) const override {
    const CodecPlan plan = codec_->Plan(static_cast<uint32_t>(bytes / SizeOf(dtype)));
    return BodyAt(plan) + plan.payload;
  }

  Result<size_t> Encode(DType dtype, const Draw& draw, std::span<const std::byte> in,
                        std::span<std::byte> out) const override {
    const auto numel = static_cast<uint32_t>(in.size() / SizeOf(dtype));
    const CodecPlan plan = codec_->Plan(numel);
    const auto [workspace, rounded] = ScratchFor<2>({plan.workspace, FloatBytes(dtype, numel)});
    const std::span<const float> x = Floats(dtype, in, reinterpret_cast<float*>(rounded));
    const Stream64 stream = StreamOf(0, draw, kNumberPurpose, false);
    const Draw own{.key = uint64_t{stream.high} << 32 | stream.low};
    PutLittle(out.data(), own.key);
    std::byte* const prelude = out.data() + kNumber;
    std::byte* const body = out.data() + BodyAt(plan);
    std::memset(prelude, 0, static_cast<size_t>(body - prelude));
    if (plan.prelude != 0) codec_->Prepare(x, own, workspace, prelude);
    return BodyAt(plan) + codec_->Encode(x, own, prelude, workspace, body);
  }

  Result<size_t> Decode(DType dtype, std::span<const std::byte> in, std::span<std::byte> out) const override {
    const auto numel = static_cast<uint32_t>(out.size() / SizeOf(dtype));
    const CodecPlan plan = codec_->Plan(numel);
    if (in.size() < BodyAt(plan))
      return Status(Code::kCorrupt, "a payload of codec " + codec_->spec() + " is cut off: it has " +
                                        std::to_string(in.size()) + " bytes");
    const auto [workspace, sum, result, wide] =
        ScratchFor<4>({plan.workspace, plan.accumulator, plan.result, FloatBytes(dtype, numel)});
    const Draw draw{.key = GetLittle<uint64_t>(in.data())};
    Bytes body = in.subspan(BodyAt(plan));
    if (codec_->trait() == Trait::kWidening || codec_->trait() == Trait::kVote) {
      codec_->Reset(numel, sum);
      if (Status status = codec_->Accumulate(numel, body, workspace, sum); !status.ok()) return status;
      body = {result, codec_->Emit(numel, 1, draw, workspace, sum, result)};
    }
    const bool narrow = dtype == DType::kFloat32;
    const std::span<float> found(reinterpret_cast<float*>(narrow ? out.data() : wide), numel);
    Status status = codec_->Decode(body, 1, draw, in.data() + kNumber, workspace, 1.0f, found);
    if (!status.ok()) return status;
    if (!narrow) std::ranges::copy(found, reinterpret_cast<double*>(out.data()));
    return numel * SizeOf(dtype);
  }

 private:
  static size_t BodyAt(const CodecPlan& plan) { return kNumber + Aligned(plan.prelude, kNumber); }
  // Of rows in another type than the codec's.
  static uint64_t FloatBytes(DType dtype, uint32_t numel) {
    return dtype == DType::kFloat32 ? 0 : uint64_t{numel} * sizeof(float);
  }
  // Buffers of a ShardMemory are aligned.
  static std::span<const float> Floats(DType dtype, std::span<const std::byte> in, float* rounded) {
    const size_t numel = in.size() / SizeOf(dtype);
    if (dtype == DType::kFloat32) return {reinterpret_cast<const float*>(in.data()), numel};
    const double* const values = reinterpret_cast<const double*>(in.data());
    for (size_t i = 0; i < numel; ++i) rounded[i] = static_cast<float>(values[i]);
    return {rounded, numel};
  }

  const CodecPointer codec_;
};

}  // namespace

Result<FilterPointer> MakeCodecFilter(std::string_view text) {
  const auto names = CodecNames();
  if (std::ranges::find(names, text.substr(0, text.find(':'))) == names.end()) return FilterPointer();
  auto codec = MakeCodec(text, 1);
  if (!codec.ok()) return codec.status();
  return FilterPointer(std::make_unique<const CodecFilter>(std::move(*codec)));
}

}  // namespace byteps_like
