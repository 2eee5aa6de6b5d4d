// The elements of largest magnitude. `exact`: k of them; Aji and Heafield, "Sparse Communication for Distributed
// Gradient Descent" (EMNLP 2017). `sampled`: about k, by a threshold from 1 % of the elements; Lin et al., "Deep
// Gradient Compression" (ICLR 2018). Payload: indices, ascending, then values; `sampled` has their number before them.
#include "compression/registry.h"
#include "compression/sparse/select.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

class TopK : public ReencodeCodec {
 public:
  TopK(const CodecSpec& spec, uint32_t world, double ratio, bool sampled)
      : ReencodeCodec(spec.text(), world), ratio_(ratio), sampled_(sampled) {}
  uint8_t id() const override { return 12; }

  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t most = Head() + 8 * Most(numel);
    return {.payload = most,
            .result = most,
            .accumulator = uint64_t{numel} * sizeof(float),
            .workspace = Selection::Bytes(numel)};
  }

  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte*, std::byte* workspace,
                  std::byte* payload) const override {
    const Selection selection(AsWords(workspace), x.size());
    uint32_t count = Wanted(static_cast<uint32_t>(x.size()));
    if (sampled_) {
      count = SelectAbout(x, count, selection);
      std::memcpy(payload, &count, sizeof(count));
    } else {
      SelectLargest(x, count, selection);
    }
    std::memcpy(payload + Head(), selection.indices, size_t{count} * 4);
    std::memcpy(payload + Head() + size_t{count} * 4, selection.values, size_t{count} * 4);
    return Head() + 8 * count;
  }

  Status DecodeInto(Bytes payload, float factor, bool add, std::span<float> sum) const override {
    const auto numel = static_cast<uint32_t>(sum.size());
    if (payload.size() < Head()) return CorruptPayload("topk", "a payload without a head");
    const uint32_t count = sampled_ ? ReadWord(payload.data()) : Wanted(numel);
    if (count > Most(numel) || payload.size() != Head() + uint64_t{8} * count)
      return CorruptPayload("topk", "a payload of the wrong length");
    const std::span<const uint32_t> indices(AsWords(payload.data() + Head()), count);
    if (!AreIndices(indices, numel)) return CorruptPayload("topk", "indices that don't ascend, or beyond the end");
    if (!add) std::memset(sum.data(), 0, sum.size_bytes());
    const float* const values = AsFloats(payload.data() + Head()) + count;
    for (uint32_t i = 0; i < count; ++i) sum[indices[i]] += factor * values[i];
    return Status();
  }

 private:
  uint32_t Head() const { return sampled_ ? 4 : 0; }
  uint32_t Wanted(uint32_t numel) const { return std::max(1u, static_cast<uint32_t>(ratio_ * numel)); }
  uint32_t Most(uint32_t numel) const {
    const uint64_t wanted = Wanted(numel);
    return sampled_ ? static_cast<uint32_t>(std::min<uint64_t>(numel, std::max(wanted, wanted * 13 / 10)))
                    : static_cast<uint32_t>(wanted);
  }

  const double ratio_;
  const bool sampled_;
};

}  // namespace

Result<CodecPointer> MakeTopK(CodecSpec& spec, uint32_t world) {
  const double ratio = spec.Real("ratio", 0, 1);
  const bool sampled = spec.Word("select", {"exact", "sampled"}) == "sampled";
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return CodecPointer(std::make_shared<TopK>(spec, world, ratio, sampled));
}

}  // namespace byteps_like
