// BytePS's dithering: the partition divided by its norm, each element rounded stochastically to one of some levels, in
// equal steps (linear) or at powers of two (natural: Horvath et al., "Natural Compression for Distributed Deep
// Learning", MSML 2022). With numbers of fixed width in place of Elias codes.
#include "compression/quantised/quantised.h"

namespace byteps_like {

Result<CodecPointer> MakeDithering(CodecSpec& spec, uint32_t world) {
  QuantisedOptions options{.id = 11};
  options.block = static_cast<uint32_t>(spec.Integer("block", 0, int64_t{1} << 30));
  const int64_t levels = spec.Integer("levels", 1, 127);
  options.euclidean = spec.Word("norm", {"max", "l2"}) == "l2";
  const bool linear = spec.Word("partition", {"linear", "natural"}) == "linear";
  options.grid = {BitsFor(levels), static_cast<uint32_t>(levels), linear ? Rounding::kStochastic : Rounding::kNatural};
  options.seed = spec.Seed();
  return MakeQuantised(spec, world, options);
}

}  // namespace byteps_like
