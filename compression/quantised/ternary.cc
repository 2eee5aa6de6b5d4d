// -1, 0 or 1 times the greatest magnitude: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in
// Distributed Deep Learning" (NeurIPS 2017), with its clipping and, by a shared scale, its scaler sharing.
#include "compression/quantised/quantised.h"

namespace byteps_like {

Result<CodecPointer> MakeTernary(CodecSpec& spec, uint32_t world) {
  QuantisedOptions options{.id = 10};
  options.block = static_cast<uint32_t>(spec.Integer("block", 0, int64_t{1} << 30));
  options.clip = static_cast<float>(spec.Real("clip", 0, 1e6));
  options.grid = {2, 1, Rounding::kStochastic};
  options.shared = spec.Word("scale", {"own", "shared"}) == "shared";
  options.seed = spec.Seed();
  return MakeQuantised(spec, world, options);
}

}  // namespace byteps_like
