// What the contributions of a version tell of the gradient that all of them stand for: its size, beside noise.
// Twin of byteps_like/store/gradient_estimate.py, which has the formulas, to the last bit.
#pragma once

#include <cstddef>
#include <span>

#include "csrc/base/dtype.h"

namespace byteps_like {

// Unbiased estimates, if contributions are drawn independently around one gradient, with one spread.
struct GradientEstimate {
  double square = 0;  // of the squared norm of that gradient; below 0 where noise hides it
  double noise = 0;   // of the expected squared distance of a contribution from it
};

// Of at least two arrays of fp32, fp64 or int64, `count` elements each, finite, in one pass over them.
GradientEstimate EstimateGradient(DType dtype, std::span<void* const> arrays, size_t count);

}  // namespace byteps_like
