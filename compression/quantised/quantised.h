// The common base of int, qsgd, ternary and dithering: a block of elements has a range r, and each element is kept as a
// small whole number that stands for a level between -r and r. Byte layout: compression/loops/quantised.h.
//
// Own scale (kReencode): payload = the numbers of all elements, then the ranges as fp32. Shared scale (kWidening): the
// ranges' maximum over all ranks is the prelude, a payload is the numbers alone, and a result their sums, in 8, 16 or
// 32 bits, as many as the world needs.
#pragma once

#include "compression/loops/quantised.h"
#include "compression/registry.h"

namespace byteps_like {

struct QuantisedOptions {
  uint8_t id = 0;
  uint32_t block = 0;  // elements, a multiple of 128; 0: the partition
  Grid grid = {};
  bool shared = false;
  bool euclidean = false;  // the range is the block's Euclidean norm, else its greatest magnitude,
  float clip = 0;          // but at most this many times the root of its mean square; 0: no limit
  uint64_t seed = 0;
};

// Bits that hold numbers from -levels to levels: 2, 4 or 8.
constexpr uint32_t BitsFor(int64_t levels) { return levels <= 1 ? 2 : levels <= 7 ? 4 : 8; }

// Ends with spec.Done().
Result<CodecPointer> MakeQuantised(CodecSpec& spec, uint32_t world, const QuantisedOptions& options);

}  // namespace byteps_like
