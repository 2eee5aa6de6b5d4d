// Whole chunks, those of the largest norms: compression/sparse/chunktopk.cc; sparse.cu has the kernels.
//
// Floor, in bytes per element: 4 for the norms, 8 per element of a chosen chunk each way, 4 to clear. Norms have the
// order of the CPU's 16 lanes: 16 threads a chunk, a dozen loads ahead of the additions in fp64, which no longer chunk
// can be cut into parts of.
#pragma once

#include "device.cuh"

namespace {

constexpr u32 kSumLanes = 16;  // of a sum

// visit(element of the rows, element of x) for `rows` chunks, of which the rows hold `width` elements; beyond the end
// of x: numel. A warp goes through 1024 elements, with one division, and one more where a row ends.
template <typename Visit>
DEVICE void EachInRows(const u32* chunks, u32 rows, u32 chunk, u32 width, u32 numel, const Visit& visit) {
  constexpr u32 kTile = 1024;
  const u32 all = rows * width, lane = LaneOf(), step = static_cast<u32>(IndexStride()) / kWarp * kTile;
  for (u32 tile = static_cast<u32>(FirstIndex()) / kWarp * kTile; tile < all; tile += step) {
    u32 row = (tile + lane) / width, in_row = (tile + lane) % width;
#pragma unroll 8
    for (u32 i = tile + lane; i < min(tile + kTile, all); i += 32, in_row += 32) {
      if (in_row >= width) {
        row += in_row / width;
        in_row %= width;
      }
      const u64 from = static_cast<u64>(chunks[row]) * chunk + in_row;
      visit(i, static_cast<u32>(from < numel ? from : numel));
    }
  }
}

}  // namespace
