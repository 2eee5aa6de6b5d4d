// THC (compression/quantised/thc.cc). Floor at 4 bits, in bytes an element: norm reads 4; encode reads 4 and writes 0.5; residual
// reads 4.5 and writes 4; decode reads 1 (sums of 8 bits) and writes 4. Blocks are rotated in encode, not beside the
// norm: they are scaled first by what all ranks agree on, and to keep them rotated would take 8 bytes more.
//
// Why encode_whole should reach 0.6 of the rate of a copy (reckoned for an H100; not measured): a block of 32768 is 147
// KB, 11 800 cycles of a multiprocessor's share of 2.9 TB/s. Its 32 warps issue some 60 instructions an element (15 of
// the transform, 7 that move, 4 of signs, 16 of three ramps, 8 of random numbers, 4 of packing, and addresses): 15 500
// cycles; beside them shared memory takes 7 words an element, without conflicts of banks: 7 200 cycles. With 64
// registers a thread no second block fits: the first loads, from the L2 cache, take 2 400 cycles more. 11 800 / 17 900
// = 0.66.
#include "rotation.cuh"

namespace {

constexpr u32 kMostRamps = 15;
constexpr u32 kGroup = 256;  // elements

struct Stream {  // csrc/codec/random.h
  u32 low, high;
};

// Rotation blocks `first` to `end` - 1 of a partition.
struct Blocks {
  u32 numel, first, end;
  Stream signs;
  const float* norms;  // of all its blocks
};

struct ThcTable {
  double limit;
  u32 bits, granularity;
  u32 wide;       // sums of 16 bits
  u32 points[4];  // a byte each

  DEVICE i32 operator[](u32 code) const {
    // By choices: an index would have the table copied into memory.
    const u32 low = code & 4 ? points[1] : points[0], high = code & 4 ? points[3] : points[2];
    return static_cast<i32>((code & 8 ? high : low) >> 8 * (code % 4) & 0xFF);
  }
};

struct Ramp {
  float multiplier, offset, top;
};

struct Shared {
  alignas(16) u32 signs[kThreads];
  Ramp ramps[kMostRamps];
  u32 ramp_count;
  float points[16];
  float unit;
};

DEVICE bool Usable(float norm) { return norm > 0 && norm <= 0x1.fffffep127f; }

// What half a step of the grid is worth after the rotation back.
DEVICE float UnitOf(const ThcTable& table, float norm, u32 padded, float factor) {
  return static_cast<float>(static_cast<double>(factor) * table.limit * static_cast<double>(norm) /
                            (static_cast<double>(table.granularity) * padded));
}

// By the first warp: ThcPoints::Ramps.
DEVICE void MakeRamps(const ThcTable& table, float norm, Shared& shared) {
  const u32 cell = threadIdx.x, cells = (1u << table.bits) - 1;
  const bool is_cell = cell < cells;
  const i32 width = is_cell ? table[cell + 1] - table[cell] : 0;
  const bool begins = is_cell && (cell == 0 || width != table[cell] - table[cell - 1]);
  const u32 begun = __ballot_sync(kAllLanes, begins);
  if (cell == 0) shared.ramp_count = static_cast<u32>(__popc(begun));
  if (!begins) return;
  const u32 later = begun >> cell >> 1;
  const u32 end = later == 0 ? cells : cell + static_cast<u32>(__ffs(static_cast<i32>(later)));
  const double factor = static_cast<double>(NormalisingFactor(norm));
  const double unit = table.granularity / (2 * table.limit * static_cast<double>(norm)) / factor;
  const double slope = 65536.0 / width;
  shared.ramps[__popc(begun & ((1u << cell) - 1))] = {
      static_cast<float>(unit * slope), static_cast<float>((table.granularity / 2.0 - table[cell]) * slope),
      static_cast<float>(65536.0 * (end - cell))};
}

using Floats = Values<float, 4>;
using Words = Values<u32, 4>;
// Aligned to 16 bytes.
template <typename T>
DEVICE Values<T, 4> FourOf(const T* values) {
  return *reinterpret_cast<const Values<T, 4>*>(values);
}

template <bool kWhole>
struct FlippedElements {  // D x
  const float* x;         // of the block; kWhole: aligned to 16 bytes
  u32 size;
  float factor;
  const u32* signs;

  DEVICE Floats operator()(u32 e) const {
    auto four = kWhole ? FourOf(x + e) : Load<4>(x, e, size);
    const auto words = FourOf(signs + e / kGroup * 8 + e % 8);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) four.at[j] *= Signed(factor, words.at[j], e);
    return four;
  }
};

// Of element e: s + 4 w and m of compression/loops/codes.h.
DEVICE u32 VectorOf(u32 e) { return (e / 8 & 3) | (e / 128 & 1) << 2; }
DEVICE u32 ByteOf(u32 e) { return e / 32 & 3; }

DEVICE Floats Centred(const Words& words, u32 shift, u32 mask, float offset) {
  Floats four;
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    const auto sum = static_cast<float>(static_cast<i32>(words.at[j] >> shift & mask));
    four.at[j] = (sum + sum) - offset;
  }
  return four;
}

struct Sums8 {
  const u32* words;  // of the block
  float offset;

  DEVICE Floats operator()(u32 e) const {
    const u32 at = e / kGroup * 64 + 8 * VectorOf(e) + e % 8;
    return Centred(FourOf(words + at), 8 * ByteOf(e), 0xFF, offset);
  }
};

struct Sums16 {
  const u32* words;
  float offset;

  DEVICE Floats operator()(u32 e) const {
    const u32 at = e / kGroup * 128 + 16 * VectorOf(e) + 8 * (ByteOf(e) % 2) + e % 8;
    return Centred(FourOf(words + at), 16 * (ByteOf(e) / 2), 0xFFFF, offset);
  }
};

template <u32 kBits>
struct Codes {
  const u32* words;
  const float* points;  // of a code: twice the point less the last one

  DEVICE Floats operator()(u32 e) const {
    const u32* const group = words + e / kGroup * (8 * kBits) + e % 8;
    const u32 vector = VectorOf(e), byte = 8 * ByteOf(e);
    auto codes = kBits == 4 ? FourOf(group + vector / 2 * 8) : FourOf(group + vector / 4 * 8);
    Words high = {};
    if (kBits == 3) high = FourOf(group + 16);
    Floats four;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      u32 code =
          kBits == 4 ? codes.at[j] >> (byte + 4 * (vector % 2)) & 15 : codes.at[j] >> (byte + 2 * (vector % 4)) & 3;
      if (kBits == 3) code |= (high.at[j] >> (byte + vector) & 1) << 2;
      four.at[j] = points[code];
    }
    return four;
  }
};

// In the low three bytes, the whole part of `place`, which is from 0 to 2^23.
DEVICE u32 WholePart(float place) {
#ifdef __CUDA_ARCH__
  return BitsOf(__fadd_rd(place, 0x1p23f));  // a conversion takes four times as long
#else
  return static_cast<u32>(static_cast<i32>(place));
#endif
}

// Codes of the thread's elements t + 1024 r, four of them a word: those of r / 4 at 1024 (r / 4) + PlaceOf(t).
DEVICE u32 PlaceOf(u32 t) { return t ^ (t >> 7 & 1) << 3; }

DEVICE float OnRamp(const Ramp& ramp, float x) {
  return fminf(fmaxf(x * ramp.multiplier + ramp.offset, 0.0f), ramp.top);
}

// kRamps: how many, known to the compiler; 0: `count` of them.
template <u32 kRamps>
DEVICE void Quantise(const float (&v)[kEach], const Ramp* ramps, u32 count, Stream rounding, u32 first, u32* places) {
  const u32 t = threadIdx.x;
  const bool odd = t / 8 % 2 != 0;  // the high half of each word
  const u32 word = (first + t / kGroup) * (kGroup / 2) + (t / 16 % 16) * 8 + t % 8;
  constexpr u32 kStep = kThreads / 2;
  Ramp own[kRamps == 0 ? 1 : kRamps];
#pragma unroll
  for (u32 k = 0; k < (kRamps == 0 ? 1 : kRamps); ++k) own[k] = ramps[k];
#pragma unroll
  for (u32 r = 0; r < kEach; r += 4) {
    u32 rounded[4];
#pragma unroll
    for (u32 pair = 0; pair < 4; pair += 2) {
      // Lanes t and t ^ 8 need both halves of the same two words: each makes one.
      const u32 made = RandomWord(rounding.low, rounding.high, word + (r + pair + (odd ? 1 : 0)) * kStep);
      const u32 got = __shfl_xor_sync(kAllLanes, made, 8);
      const u32 words[2] = {odd ? got : made, odd ? made : got};
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        float place = 0.5f;
        if (kRamps == 0)
          for (u32 k = 0; k < count; ++k) place += OnRamp(ramps[k], v[r + pair + i]);
#pragma unroll
        for (const Ramp& ramp : own) place += kRamps == 0 ? 0 : OnRamp(ramp, v[r + pair + i]);
        rounded[pair + i] = WholePart(place) + (odd ? words[i] >> 16 : words[i] & 0xFFFF);
      }
    }
    places[r / 4 * kThreads + PlaceOf(t)] = BytesOf(rounded, 2);  // the codes
  }
}

// Bits kFrom to kFrom + kWidth - 1 of all codes into `codes`, a group of which has `words` words, theirs from word
// `begin`.
template <u32 kWidth, u32 kFrom>
DEVICE void PackPlane(const u32* places, u32 groups, u32 words, u32 begin, u32* codes) {
  constexpr u32 kInByte = 8 / kWidth;
  const u32 lane = threadIdx.x % 8, vector = threadIdx.x / 8 % kWidth, high = threadIdx.x / (8 * kWidth);
  if (high >= 32) return;
  u32 bytes[4] = {};  // byte k of word m: row m of group high % 4 + 4 k + 16 (high / 4)
#pragma unroll
  for (u32 i = 0; i < kInByte; ++i)
#pragma unroll
    for (u32 m = 0; m < 4; ++m) {
      const u32 from = i + kInByte * vector;
      const u32 t = lane | from % 4 << 3 | m << 5 | from / 4 << 7 | high % 4 << 8;
      const u32 four = places[high / 4 * kThreads + PlaceOf(t)];
      bytes[m] |= (four >> kFrom & ((1u << kWidth) - 1) * 0x01010101u) << (kWidth * i);
    }
#pragma unroll
  for (u32 k = 0; k < 4; ++k) {
    const u32 group = high % 4 + 4 * k + 16 * (high / 4);
    if (group < groups) codes[group * words + begin + 8 * vector + lane] = BytesOf(bytes, k);
  }
}

DEVICE void Pack(const u32* places, u32 groups, u32 bits, u32* codes) {
  if (bits == 4) return PackPlane<4, 0>(places, groups, 32, 0, codes);
  PackPlane<2, 0>(places, groups, 8 * bits, 0, codes);
  if (bits == 3) PackPlane<1, 2>(places, groups, 24, 16, codes);
}

// out = base + unit * D v; no base: 0.
DEVICE void FlipBack(const float (&v)[kEach], const u32* signs, float unit, u32 size, const float* base, float* out) {
#pragma unroll
  for (u32 r = 0; r < kEach; ++r) {
    const u32 e = threadIdx.x + kThreads * r;
    if (e < size) {
      const float value = v[r] * Signed(unit, signs[e / kGroup * 8 + e % 8], e);
      out[e] = (base != nullptr ? base[e] : 0.0f) + value;
    }
  }
}

// What this multiprocessor should come to next is fetched into the L2 cache beside the work on this block.
DEVICE void FetchLater([[maybe_unused]] const float* x, [[maybe_unused]] const Blocks& blocks,
                       [[maybe_unused]] u32 number) {
#ifdef __CUDA_ARCH__
  u32 multiprocessors;
  asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
  const u32 later = number + multiprocessors;
  if (later < blocks.end)
    asm volatile("prefetch.L2 [%0];" ::"l"(x + later * kMostRotation + threadIdx.x * (kMostRotation / kThreads)));
#endif
}

template <bool kWhole>
DEVICE void Encode(const float* x, const Blocks& blocks, const ThcTable& table, Stream rounding, u32* codes) {
  DYNAMIC_SHARED(float, tile);
  __shared__ Shared shared;
  for (u32 number = blocks.first + blockIdx.x; number < blocks.end; number += gridDim.x) {
    const RotationBlock at = RotationAt(blocks.numel, number);
    const u32 first_group = at.begin / kGroup, groups = at.padded / kGroup;
    u32* const to = codes + first_group * 8 * table.bits;
    const float norm = blocks.norms[number];
    if (!Usable(norm)) {
      for (u32 i = threadIdx.x; i < groups * 8 * table.bits; i += kThreads) to[i] = 0;
      continue;
    }
    __syncthreads();  // the last block has been packed
    MakeSigns(blocks.signs.low, blocks.signs.high, at, shared.signs);
    if (kWhole) FetchLater(x, blocks, number);
    __syncthreads();
    if (threadIdx.x < 32) MakeRamps(table, norm, shared);  // beside the loads of the other warps
    float v[kEach];
    Rotate<kWhole>(FlippedElements<kWhole>{x + at.begin, at.size, NormalisingFactor(norm), shared.signs}, at.padded,
                   tile, v);
    __syncthreads();
    auto* const places = reinterpret_cast<u32*>(tile);
    if (shared.ramp_count == 1)
      Quantise<1>(v, shared.ramps, 1, rounding, first_group, places);
    else if (shared.ramp_count == 3)
      Quantise<3>(v, shared.ramps, 3, rounding, first_group, places);
    else
      Quantise<0>(v, shared.ramps, shared.ramp_count, rounding, first_group, places);
    __syncthreads();
    Pack(places, groups, table.bits, to);
  }
}

template <bool kWhole>
DEVICE void Residual(const float* x, const Blocks& blocks, const ThcTable& table, const u32* codes, float* residual) {
  DYNAMIC_SHARED(float, tile);
  __shared__ Shared shared;
  for (u32 number = blocks.first + blockIdx.x; number < blocks.end; number += gridDim.x) {
    const RotationBlock at = RotationAt(blocks.numel, number);
    const u32* const from = codes + at.begin / kGroup * 8 * table.bits;
    const float norm = blocks.norms[number];
    if (!Usable(norm)) {
      for (u32 i = threadIdx.x; i < at.size; i += kThreads) residual[at.begin + i] = 0;
      continue;
    }
    __syncthreads();
    MakeSigns(blocks.signs.low, blocks.signs.high, at, shared.signs);
    if (threadIdx.x < 16) {
      const auto point = static_cast<float>(table[threadIdx.x]);
      shared.points[threadIdx.x] = (point + point) - static_cast<float>(table.granularity);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.unit = UnitOf(table, norm, at.padded, -1.0f);
    float v[kEach];
    if (table.bits == 4)
      Rotate<kWhole>(Codes<4>{from, shared.points}, at.padded, tile, v);
    else if (table.bits == 3)
      Rotate<kWhole>(Codes<3>{from, shared.points}, at.padded, tile, v);
    else
      Rotate<kWhole>(Codes<2>{from, shared.points}, at.padded, tile, v);
    FlipBack(v, shared.signs, shared.unit, at.size, x + at.begin, residual + at.begin);
  }
}

template <bool kWhole>
DEVICE void Decode(const u32* sums, const Blocks& blocks, const ThcTable& table, u32 count, float factor, float* out) {
  DYNAMIC_SHARED(float, tile);
  __shared__ Shared shared;
  for (u32 number = blocks.first + blockIdx.x; number < blocks.end; number += gridDim.x) {
    const RotationBlock at = RotationAt(blocks.numel, number);
    const u32* const from = sums + at.begin / kGroup * (table.wide ? 128 : 64);
    const float norm = blocks.norms[number];
    if (!Usable(norm)) {
      const float all = norm == 0 ? 0.0f : FloatOf(0x7FC00000u);
      for (u32 i = threadIdx.x; i < at.size; i += kThreads) out[at.begin + i] = all;
      continue;
    }
    __syncthreads();
    MakeSigns(blocks.signs.low, blocks.signs.high, at, shared.signs);
    __syncthreads();
    if (threadIdx.x == 0) shared.unit = UnitOf(table, norm, at.padded, factor);
    const auto offset = static_cast<float>(count * table.granularity);
    float v[kEach];
    if (table.wide)
      Rotate<kWhole>(Sums16{from, offset}, at.padded, tile, v);
    else
      Rotate<kWhole>(Sums8{from, offset}, at.padded, tile, v);
    FlipBack(v, shared.signs, shared.unit, at.size, nullptr, out + at.begin);
  }
}

// A metric: whole blocks go the way of all.
DEVICE void Clamped(const float* x, const Blocks& blocks, const ThcTable& table, u32* found) {
  DYNAMIC_SHARED(float, tile);
  __shared__ Shared shared;
  for (u32 number = blocks.first + blockIdx.x; number < blocks.end; number += gridDim.x) {
    const RotationBlock at = RotationAt(blocks.numel, number);
    const float norm = blocks.norms[number];
    if (!Usable(norm)) continue;
    const float factor = NormalisingFactor(norm);
    __syncthreads();
    MakeSigns(blocks.signs.low, blocks.signs.high, at, shared.signs);
    if (threadIdx.x == 0)
      shared.unit = static_cast<float>(table.limit * static_cast<double>(norm) * static_cast<double>(factor));
    __syncthreads();
    float v[kEach];
    Rotate<false>(FlippedElements<false>{x + at.begin, at.size, factor, shared.signs}, at.padded, tile, v);
    u32 beyond = 0;
    for (const float value : v) beyond += fabsf(value) > shared.unit ? 1 : 0;
    beyond = WarpSum(beyond);
    if (LaneOf() == 0 && beyond > 0) atomicAdd(found, beyond);
  }
}

}  // namespace

KERNEL(512) thc_norm(const float* x, u32 numel, u32 count, float* norms) {
  __shared__ double sums[kNormThreads];
  for (u32 number = blockIdx.x; number < count; number += gridDim.x) {
    const RotationBlock at = RotationAt(numel, number);
    const float norm = NormOf(x + at.begin, at.size, sums);
    if (threadIdx.x == 0) norms[number] = norm;
    __syncthreads();
  }
}

KERNEL(1024) thc_encode(const float* x, Blocks blocks, ThcTable table, Stream rounding, u32* codes) {
  Encode<false>(x, blocks, table, rounding, codes);
}
KERNEL(1024) thc_residual(const float* x, Blocks blocks, ThcTable table, const u32* codes, float* out) {
  Residual<false>(x, blocks, table, codes, out);
}
KERNEL(1024) thc_decode(const u32* sums, Blocks blocks, ThcTable table, u32 count, float factor, float* out) {
  Decode<false>(sums, blocks, table, count, factor, out);
}
KERNEL(1024) thc_clamped(const float* x, Blocks blocks, ThcTable table, u32* found) {
  Clamped(x, blocks, table, found);
}

KERNEL(1024) thc_encode_whole(const float* x, Blocks blocks, ThcTable table, Stream rounding, u32* codes) {
  Encode<true>(x, blocks, table, rounding, codes);
}
KERNEL(1024) thc_residual_whole(const float* x, Blocks blocks, ThcTable table, const u32* codes, float* out) {
  Residual<true>(x, blocks, table, codes, out);
}
KERNEL(1024) thc_decode_whole(const u32* sums, Blocks blocks, ThcTable table, u32 count, float factor, float* out) {
  Decode<true>(sums, blocks, table, count, factor, out);
}
