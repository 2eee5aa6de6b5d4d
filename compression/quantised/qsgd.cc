// Levels between 0 and a block's norm, rounded stochastically: Alistarh et al., "QSGD: Communication-Efficient SGD via
// Gradient Quantization and Encoding" (NeurIPS 2017). With numbers of fixed width in place of Elias codes.
#include "compression/quantised/quantised.h"

namespace byteps_like {

Result<CodecPointer> MakeQsgd(CodecSpec& spec, uint32_t world) {
  QuantisedOptions options{.id = 8};
  options.block = static_cast<uint32_t>(spec.Integer("block", 0, int64_t{1} << 30));
  const int64_t levels = spec.Integer("levels", 1, 127);
  options.grid = {BitsFor(levels), static_cast<uint32_t>(levels), Rounding::kStochastic};
  options.euclidean = spec.Word("norm", {"max", "l2"}) == "l2";
  options.shared = spec.Word("scale", {"own", "shared"}) == "shared";
  options.seed = spec.Seed();
  return MakeQuantised(spec, world, options);
}

}  // namespace byteps_like
