// Whole numbers of 8, 4 or 2 bits with a range per block (compression/quantised/int.cc, quantised.cc). Floor, in bytes an element
// at 8 bits and blocks of 256: encode reads 4 and writes 1.02, residual reads 5.02 and writes 4, decode 1.02 and 4;
// with a shared scale ranges read 4, pack 4.02 and 1. Blocks of more than 512 with a scale of their own are read twice,
// the second time from the L2 cache where the partition fits.
//
// A warp takes chunks of 128 elements, four a lane: loads of 512 contiguous bytes, stores of whole sectors; lanes whose
// elements share bytes put them together by shuffles. Why int_encode8 should reach 0.8 of the rate of a copy (reckoned
// for an H100; not measured): it takes 40 to 48 registers, so that 40 warps on a multiprocessor ask for a block of 1
// KiB each, twice what hides the latency of the memory; an element costs some 30 instructions (45 with stochastic
// rounding), and there is time for 50 while a copy moves its 5 bytes.
#include "device.cuh"

namespace {

constexpr u32 kChunk = 128;     // elements
constexpr u32 kMost = 4;        // chunks of a block that a warp keeps in registers
constexpr u32 kTile = 4;        // chunks that it takes in a row where it need not keep them
constexpr u32 kStretch = 1024;  // elements of which it finds the greatest
constexpr u32 kNan = 0x7FC00000u, kInfinity = 0x7F800000u;
constexpr float kLeastRange = 0x1p-100f;

using Floats = Values<float, 4>;

struct Grid {
  u32 numel, block;  // elements; block: a multiple of kChunk, not 0
  u32 levels, is_stochastic;
  u32 low, high;  // the stream of random words
};

DEVICE u32 FirstWarp() { return static_cast<u32>(FirstIndex() / kWarp); }
DEVICE u32 WarpStride() { return static_cast<u32>(IndexStride() / kWarp); }
DEVICE u32 Least(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 Greatest(u32 a, u32 b) { return a > b ? a : b; }

DEVICE u32 Magnitude(const Floats& four) {
  return Greatest(Greatest(MagnitudeOf(four.at[0]), MagnitudeOf(four.at[1])),
                  Greatest(MagnitudeOf(four.at[2]), MagnitudeOf(four.at[3])));
}

// A range's bits. It rises with the magnitude, so that the greatest may also be taken after it.
DEVICE u32 RangeOf(u32 magnitude) {
  return magnitude >= kInfinity ? kNan : magnitude < BitsOf(kLeastRange) ? 0 : magnitude;
}

// 0: no number of the block is anything else.
DEVICE float InverseOf(float range, u32 levels) {
  const bool is_usable = range >= kLeastRange && BitsOf(range) < kInfinity;
  return is_usable ? static_cast<float>(levels) / range : 0.0f;
}

// As they are stored, in the low byte. Adding 1.5 * 2^23, whose low byte is 0, leaves the nearest whole number there.
DEVICE u32 Nearest(float x, const Grid& grid, float inverse) { return BitsOf(x * inverse + 0x1.8p23f) + grid.levels; }

DEVICE u32 Stochastic(float x, u32 place, const Grid& grid, float inverse) {
  const float offset = static_cast<float>(grid.levels), unit = ToUnit(RandomWord(grid.low, grid.high, place));
  const i32 level = __float2int_rz((x * inverse + offset) + unit), most = static_cast<i32>(2 * grid.levels);
  return static_cast<u32>(level < 0 ? 0 : level > most ? most : level);
}

// The bytes of a lane's four elements of the chunk from element `first`, and the plane they have in them
// (compression/loops/quantised.h).
template <u32 kBits>
struct Place {
  static constexpr u32 kPlanes = 8 / kBits, kGroup = 32 * kPlanes;
  static DEVICE u32 At(u32 first) { return first / kPlanes + LaneOf() / (8 * kPlanes) * 32 + LaneOf() % 8 * 4; }
  static DEVICE u32 Shift() { return LaneOf() / 8 % kPlanes * kBits; }
  static DEVICE u32 Bytes(u32 numel) { return numel / kGroup * 32 + Least(numel % kGroup, 32); }
};

template <u32 kBits>
DEVICE void Pack(const Floats& four, u32 first, const Grid& grid, float inverse, u8* numbers) {
  using P = Place<kBits>;
  const u32 i = first + 4 * LaneOf();
  u32 stored[4];
  if (grid.is_stochastic) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) stored[j] = Stochastic(four.at[j], i + j, grid, inverse);
  } else {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) stored[j] = Nearest(four.at[j], grid, inverse);
  }
  u32 word = inverse == 0 ? grid.levels * 0x01010101u : BytesOf(stored, 0);
  if (i + 4 > grid.numel) word = i < grid.numel ? word & (0x00FFFFFFu >> 8 * (i + 3 - grid.numel)) : 0;
  word <<= P::Shift();
#pragma unroll
  for (u32 step = 8; step < 8 * P::kPlanes; step *= 2) word |= __shfl_xor_sync(kAllLanes, word, step);
  if (P::Shift() != 0) return;
  Store(numbers, P::At(first), P::Bytes(grid.numel), BytesIn(word));
}

// By the first lanes: payloads don't align them.
DEVICE void StoreRange(u32 range, u32 number, u8* ranges) {
  if (LaneOf() < 4) ranges[4 * number + LaneOf()] = static_cast<u8>(range >> 8 * LaneOf());
}

DEVICE float LoadRange(const u8* ranges, u32 number) {
  const auto bytes = Load<4>(ranges, 4 * number, 4 * number + 4);
  return FloatOf(bytes.at[0] | u32{bytes.at[1]} << 8 | u32{bytes.at[2]} << 16 | u32{bytes.at[3]} << 24);
}

// Blocks of at most kMost chunks, one a warp: their elements are read once.
template <u32 kBits>
DEVICE void Encode(const float* x, const Grid& grid, u8* numbers, u8* ranges) {
  for (u32 number = FirstWarp(); number * grid.block < grid.numel; number += WarpStride()) {
    const u32 begin = number * grid.block;
    const float* const from = x + begin + 4 * LaneOf();
    Floats v[kMost] = {};
    if (begin + grid.block <= grid.numel && IsAligned<Floats>(from)) {
#pragma unroll
      for (u32 k = 0; k < kMost; ++k)
        if (k * kChunk < grid.block) v[k] = *reinterpret_cast<const Floats*>(from + k * kChunk);
    } else {
#pragma unroll
      for (u32 k = 0; k < kMost; ++k)
        if (k * kChunk < grid.block) v[k] = Load<4>(x, begin + k * kChunk + 4 * LaneOf(), grid.numel);
    }
    u32 most = 0;
#pragma unroll
    for (u32 k = 0; k < kMost; ++k) most = Greatest(most, Magnitude(v[k]));
    const u32 range = RangeOf(WarpMax(most));
    const float inverse = InverseOf(FloatOf(range), grid.levels);
    StoreRange(range, number, ranges);
#pragma unroll
    for (u32 k = 0; k < kMost; ++k) {
      const u32 first = begin + k * kChunk;
      if (k * kChunk < grid.block && first < grid.numel) Pack<kBits>(v[k], first, grid, inverse, numbers);
    }
  }
}

// each(first element, number of its block, whether it is the block's first) for the chunks of the warp.
template <typename Each>
DEVICE void EachChunk(const Grid& grid, const Each& each) {
  for (u32 begin = FirstWarp() * kTile * kChunk; begin < grid.numel; begin += WarpStride() * kTile * kChunk) {
    u32 number = begin / grid.block, within = begin % grid.block;
#pragma unroll
    for (u32 k = 0; k < kTile; ++k) {
      if (begin + k * kChunk < grid.numel) each(begin + k * kChunk, number, within == 0);
      within += kChunk;
      if (within == grid.block) within = 0, ++number;
    }
  }
}

template <u32 kBits>
DEVICE void PackAll(const float* x, const Grid& grid, const u32* given, u8* numbers, u8* ranges) {
  EachChunk(grid, [&](u32 first, u32 number, bool begins) {
    const auto four = Load<4>(x, first + 4 * LaneOf(), grid.numel);
    const u32 range = given[number];
    if (begins && ranges != nullptr) StoreRange(range, number, ranges);
    Pack<kBits>(four, first, grid, InverseOf(FloatOf(range), grid.levels), numbers);
  });
}

// out = base + factor * what the numbers stand for; no base: 0. `out` may be `base`.
template <u32 kBits>
DEVICE void Unpack(const u8* numbers, const u8* ranges, const Grid& grid, float factor, const float* base, float* out) {
  using P = Place<kBits>;
  EachChunk(grid, [&](u32 first, u32 number, bool) {
    const float step = factor * (LoadRange(ranges, number) / static_cast<float>(grid.levels));
    const u32 i = first + 4 * LaneOf();
    const auto bytes = Load<4>(numbers, P::At(first), P::Bytes(grid.numel));
    Floats four = {};
    if (base != nullptr) four = Load<4>(base, i, grid.numel);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      const u32 stored = u32{bytes.at[j]} >> P::Shift() & ((1u << kBits) - 1);
      four.at[j] = four.at[j] + step * static_cast<float>(static_cast<i32>(stored) - static_cast<i32>(grid.levels));
    }
    Store(out, i, grid.numel, four);
  });
}

// out = factor * what the sums, with `offset` in each, stand for.
template <typename T>
DEVICE void Spread(const T* sums, u32 offset, const float* ranges, const Grid& grid, float factor, float* out) {
  EachChunk(grid, [&](u32 first, u32 number, bool) {
    const float step = factor * (ranges[number] / static_cast<float>(grid.levels));
    const u32 i = first + 4 * LaneOf();
    const auto some = Load<4>(sums, i, grid.numel);
    Floats four;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) four.at[j] = step * static_cast<float>(static_cast<i32>(u32{some.at[j]} - offset));
    Store(out, i, grid.numel, four);
  });
}

}  // namespace

// Of each block. Those of more than 1024 elements are taken by stretches: `ranges` have to be 0 before.
KERNEL(256) int_ranges(const float* x, Grid grid, u32* ranges) {
  const u32 stretch = Least(grid.block, kStretch), in_block = (grid.block + stretch - 1) / stretch;
  const u32 stretches = grid.numel / grid.block * in_block + (grid.numel % grid.block + stretch - 1) / stretch;
  for (u32 at = FirstWarp(); at < stretches; at += WarpStride()) {
    const u32 number = at / in_block, within = at % in_block * stretch;
    const u32 begin = number * grid.block + within;
    u32 most = 0;
#pragma unroll
    for (u32 k = 0; k < kStretch / kChunk; ++k)
      if (k * kChunk < Least(stretch, grid.block - within))
        most = Greatest(most, Magnitude(Load<4>(x, begin + k * kChunk + 4 * LaneOf(), grid.numel)));
    const u32 range = RangeOf(WarpMax(most));
    if (LaneOf() == 0 && in_block == 1) ranges[number] = range;
    if (LaneOf() == 0 && in_block > 1) atomicMax(ranges + number, range);
  }
}

// Own scale, blocks of at most 512 elements.
KERNEL(256) int_encode8(const float* x, Grid grid, u8* numbers, u8* ranges) { Encode<8>(x, grid, numbers, ranges); }
KERNEL(256) int_encode4(const float* x, Grid grid, u8* numbers, u8* ranges) { Encode<4>(x, grid, numbers, ranges); }
KERNEL(256) int_encode2(const float* x, Grid grid, u8* numbers, u8* ranges) { Encode<2>(x, grid, numbers, ranges); }

// With ranges that are known; no `ranges`: they aren't written.
KERNEL(256) int_pack8(const float* x, Grid grid, const u32* given, u8* numbers, u8* ranges) {
  PackAll<8>(x, grid, given, numbers, ranges);
}
KERNEL(256) int_pack4(const float* x, Grid grid, const u32* given, u8* numbers, u8* ranges) {
  PackAll<4>(x, grid, given, numbers, ranges);
}
KERNEL(256) int_pack2(const float* x, Grid grid, const u32* given, u8* numbers, u8* ranges) {
  PackAll<2>(x, grid, given, numbers, ranges);
}

KERNEL(256) int_unpack8(const u8* numbers, const u8* ranges, Grid grid, float factor, const float* base, float* out) {
  Unpack<8>(numbers, ranges, grid, factor, base, out);
}
KERNEL(256) int_unpack4(const u8* numbers, const u8* ranges, Grid grid, float factor, const float* base, float* out) {
  Unpack<4>(numbers, ranges, grid, factor, base, out);
}
KERNEL(256) int_unpack2(const u8* numbers, const u8* ranges, Grid grid, float factor, const float* base, float* out) {
  Unpack<2>(numbers, ranges, grid, factor, base, out);
}

KERNEL(256) int_spread8(const u8* sums, u32 offset, const float* ranges, Grid grid, float factor, float* out) {
  Spread(sums, offset, ranges, grid, factor, out);
}
KERNEL(256) int_spread16(const u16* sums, u32 offset, const float* ranges, Grid grid, float factor, float* out) {
  Spread(sums, offset, ranges, grid, factor, out);
}
KERNEL(256) int_spread32(const u32* sums, u32 offset, const float* ranges, Grid grid, float factor, float* out) {
  Spread(sums, offset, ranges, grid, factor, out);
}
