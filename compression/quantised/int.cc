// Whole numbers of 8, 4 or 2 bits with a scale per block, as in ZeRO++ (Wang et al., ICLR 2024), which sends gradients
// as block-wise int4 and weights as block-wise int8. With a shared scale they can be summed as they are.
#include "compression/quantised/quantised.h"

namespace byteps_like {

Result<CodecPointer> MakeInt(CodecSpec& spec, uint32_t world) {
  const int64_t bits = spec.Integer("bits", 2, 8);
  QuantisedOptions options{.id = 5};
  options.block = static_cast<uint32_t>(spec.Integer("block", 0, int64_t{1} << 30));
  options.grid.bits = static_cast<uint32_t>(bits);
  options.grid.levels = (1u << (bits - 1)) - 1;
  const bool nearest = spec.Word("rounding", {"nearest", "stochastic"}) == "nearest";
  options.grid.rounding = nearest ? Rounding::kNearest : Rounding::kStochastic;
  options.shared = spec.Word("scale", {"own", "shared"}) == "shared";
  options.seed = spec.Seed();
  if (bits != 2 && bits != 4 && bits != 8)
    return Status(Code::kInvalid, "codec " + spec.text() + ": bits must be 2, 4 or 8");
  return MakeQuantised(spec, world, options);
}

}  // namespace byteps_like
