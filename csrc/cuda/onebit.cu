// Signs and the mean magnitude of each block (compression/quantised/onebit.cc, compression/loops/onebit.cc). Floor: encode reads
// 4 bytes and writes 1/8 an element, decode reads 1/8 and writes 4, residual reads 4 more; a scale is 4 bytes per
// block.
//
// The mean is a sum of doubles in 16 lanes, each in the order of its elements: that chain of additions is what encoding
// can't be faster than where there are few blocks. So a block of the codec is a thread block, which reads one tile
// ahead of the half of a warp that adds.
#include "device.cuh"

namespace {

constexpr u32 kThreads = 256;
constexpr u32 kLanes = 16;                    // of the sum
constexpr u32 kRows = 8;                      // elements of a thread in a tile
constexpr u32 kTile = kThreads * kRows;       // elements
constexpr u32 kWarpElements = kWarp * kRows;  // of a tile that a warp reads
constexpr u32 kRowsAtOnce = 4;                // of 128 elements, which a warp decodes

DEVICE u32 SignWords(u32 numel) { return (numel - 1) / 32 + 1; }

// Row r of a warp: 32 elements side by side, one word of signs. Zeros behind `end`, which change no sum.
DEVICE void ReadTile(const float* x, u64 first, u64 end, float* values) {
  const u64 begin = first + WarpOf() * kWarpElements + LaneOf();
#pragma unroll
  for (u32 row = 0; row < kRows; ++row) {
    const u64 i = begin + row * kWarp;
    values[row] = i < end ? x[i] : 0.0f;
  }
}

DEVICE void PackTile(const float* values, u64 first, u64 end, u32* words, float* tile) {
  const u32 begin = WarpOf() * kWarpElements;
#pragma unroll
  for (u32 row = 0; row < kRows; ++row) {
    const u32 signs = __ballot_sync(kAllLanes, static_cast<i32>(BitsOf(values[row]) >> 31));
    const u64 word = first + begin + row * kWarp;
    if (LaneOf() == 0 && word < end) words[word / 32] = signs;
    tile[begin + row * kWarp + LaneOf()] = fabsf(values[row]);
  }
}

DEVICE double AddTile(const float* tile, double sum) {
#pragma unroll 16
  for (u32 i = LaneOf() % kLanes; i < kTile; i += kLanes) sum += static_cast<double>(tile[i]);
  return sum;
}

// Of the lanes of the first warp, the mean of `count` elements, everywhere in it.
DEVICE float MeanOf(double lane, u64 count) {
  double sum = 0;
#pragma unroll
  for (u32 i = 0; i < kLanes; ++i) sum += __shfl_sync(kAllLanes, lane, static_cast<i32>(i));
  return sum != sum ? FloatOf(0x7FC00000u) : static_cast<float>(sum / static_cast<double>(count));
}

}  // namespace

KERNEL(256) onebit_encode(const float* x, u32 numel, u32 block, u32* payload) {
  __shared__ float tiles[2][kTile];
  float* const scales = reinterpret_cast<float*>(payload + SignWords(numel));
  const u32 blocks = (numel - 1) / block + 1;
  for (u64 b = blockIdx.x; b < blocks; b += gridDim.x) {
    const u64 begin = b * block, end = min(begin + block, static_cast<u64>(numel));
    double sum = 0;
    float values[kRows];
    ReadTile(x, begin, end, values);
    u32 turn = 0;
    for (u64 first = begin; first < end; first += kTile, turn ^= 1) {
      PackTile(values, first, end, payload, tiles[turn]);
      __syncthreads();  // also: what was added from the other tile is done with
      ReadTile(x, first + kTile, end, values);
      if (WarpOf() == 0) sum = AddTile(tiles[turn], sum);
    }
    if (WarpOf() == 0) {
      const float mean = MeanOf(sum, end - begin);
      if (LaneOf() == 0) scales[b] = mean;
    }
    __syncthreads();
  }
}

// `base`: what is added to; nullptr: 0. It may be `out`. A block of the codec is whole words. A warp has 32 words, each
// lane one and its scale, and shares them out over rows of 128 elements, of which a lane stores 16 bytes.
KERNEL(256) onebit_decode(const u32* payload, u32 numel, u32 block, float factor, const float* base, float* out) {
  const u32 words = SignWords(numel), shift = 28 - 4 * (LaneOf() % 8);
  const float* const scales = reinterpret_cast<const float*>(payload + words);
  for (u64 first = FirstIndex() - LaneOf(); first < words; first += IndexStride()) {
    const u32 word = static_cast<u32>(min(first + LaneOf(), static_cast<u64>(words - 1)));
    const u32 signs = payload[word], scale = BitsOf(factor * scales[word / (block / 32)]);
    const u64 begin = first * 32 + 4 * LaneOf();
#pragma unroll
    for (u32 row = 0; row < 8; row += kRowsAtOnce) {
      Values<float, 4> rows[kRowsAtOnce] = {};
      if (base != nullptr)
#pragma unroll
        for (u32 r = 0; r < kRowsAtOnce; ++r) rows[r] = Load<4>(base, begin + (row + r) * 128, numel);
#pragma unroll
      for (u32 r = 0; r < kRowsAtOnce; ++r) {
        const i32 from = static_cast<i32>(4 * (row + r) + LaneOf() / 8);
        const u32 four = __shfl_sync(kAllLanes, signs, from) << shift;  // its highest bits
        const u32 mean = __shfl_sync(kAllLanes, scale, from);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) rows[r].at[j] += FloatOf(mean ^ (four << (3 - j) & 0x80000000u));
        Store(out, begin + (row + r) * 128, numel, rows[r]);
      }
    }
  }
}
