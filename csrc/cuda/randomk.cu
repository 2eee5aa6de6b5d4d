// Elements that all ranks draw alike, one of each stretch: compression/sparse/randomk.cc.
//
// Floor, in bytes per element: 4 to see whether all of x is finite, and 4 of the payload and a 32-byte sector of x per
// element that is drawn. A thread makes four neighbouring draws: one division of 64 bits, then steps as the CPU makes
// them, and one 16-byte store.
#include "device.cuh"

namespace {

constexpr u32 kEach = 4;  // draws of a thread
constexpr u32 kInfinity = 0x7F800000, kNaN = 0x7FC00000;

// visit(i, element, length of its stretch) for all draws, by all threads of the grid, each with four in a row; stretch
// i begins at floor(i * numel / drawn).
template <typename Visit>
DEVICE void EachDrawn(u32 numel, u32 drawn, u32 low, u32 high, const Visit& visit) {
  const u32 shortest = numel / drawn, over = numel % drawn;
  for (u64 first = FirstIndex() * kEach; first < drawn; first += IndexStride() * kEach) {
    const u64 product = first * over;
    u32 begin = static_cast<u32>(first * shortest + product / drawn);
    u64 carry = product % drawn;
    for (u32 i = static_cast<u32>(first); i < first + kEach && i < drawn; ++i) {
      carry += over;
      const bool longer = carry >= drawn;
      const u32 length = shortest + longer;
      if (longer) carry -= drawn;
      visit(i, begin + static_cast<u32>(static_cast<u64>(RandomWord(low, high, i)) * length >> 32), length);
      begin += length;
    }
  }
}

DEVICE float Factor(u32 scale, u32 length) { return scale != 0 ? static_cast<float>(length) : 1.0f; }

}  // namespace

KERNEL(256) randomk_gather(const float* x, u32 numel, u32 drawn, u32 low, u32 high, float* values) {
  EachDrawn(numel, drawn, low, high, [&](u32 i, u32 at, u32) { values[i] = x[at]; });
}

// After it: where not all of x is finite, the first value becomes NaN.
KERNEL(256) randomk_doubt(const u32* x, u32 numel, u32* values) {
  u32 worst = 0;
  for (u64 i = 4 * FirstIndex(); i < numel; i += 4 * IndexStride()) {
    const auto quad = Load<4>(x, i, numel);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      const u32 magnitude = quad.at[j] & 0x7FFFFFFF;
      worst = magnitude > worst ? magnitude : worst;
    }
  }
  if (worst >= kInfinity) *values = kNaN;
}

// Into zeros.
KERNEL(256) randomk_scatter(const float* values, u32 numel, u32 drawn, u32 low, u32 high, u32 scale, float factor,
                            float* out) {
  EachDrawn(numel, drawn, low, high,
            [&](u32 i, u32 at, u32 length) { out[at] = 0.0f + factor * Factor(scale, length) * values[i]; });
}

// Out of a copy of x.
KERNEL(256) randomk_residual(const float* values, u32 numel, u32 drawn, u32 low, u32 high, u32 scale, float* residual) {
  EachDrawn(numel, drawn, low, high,
            [&](u32 i, u32 at, u32 length) { residual[at] -= Factor(scale, length) * values[i]; });
}
