// THC (compression/quantised/thc.cc). Floor at 4 bits, in bytes an element: norm reads 4; encode reads 4 and writes 0.5; residual
// reads 4.5 and writes 4; decode reads 1 (sums of 8 bits) and writes 4. Blocks are rotated in encode, not beside the
// norm: they are scaled first by what all ranks agree on, and to keep them rotated would take 8 bytes more.
//
// What bounds encode_whole is instructions: some 59 an element (16 of the first step of the rotation, signs and moves
// included, 7 and 6 of the others, 25 of codes at 5 to 11 ramps, 4 of packing), 15 100 cycles a block of 32768 on a
// multiprocessor that issues four a cycle; its share of 3.0 TB/s takes 11 500. Loads, barriers and the start of a block
// come on top, as no second one fits with 64 registers a thread: so loads are on their way before all else. Ramps, one
// by one, take five operations each, and minima run at half the rate: one rank has 11 of them. So they are folded where
// tables are symmetric, and what rounding may have changed is done again, about 1 of 128 times four elements of a warp.
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

constexpr u32 kBends = 5;  // of 11 ramps

// Symmetric ramps, as those of all tables we made are, have a sum that can be had at once. From the middle, its size is
// slope * y + offset + the sum of bends[k] * |y - at[k]|, with y from 0 to 1. It is off by less than 1.
struct Fold {
  double scale;  // of y in units of the grid
  float middle, slope, offset;
  float bends[kBends], at[kBends];
};

// Ramps in units of the grid, of neighbouring cells of one width: ThcPoints::Ramps.
struct TableRamps {
  double slopes[kMostRamps];
  float offsets[kMostRamps], tops[kMostRamps];
  u32 count, is_folded;
  Fold fold;
};

struct Shared {
  alignas(16) u32 signs[kThreads];
  Ramp ramps[kMostRamps];
  float scale;  // of y
  float points[16];
  float unit;
};

DEVICE bool Usable(float norm) { return norm > 0 && norm <= 0x1.fffffep127f; }

// What half a step of the grid is worth after the rotation back.
DEVICE float UnitOf(const ThcTable& table, float norm, u32 padded, float factor) {
  return static_cast<float>(static_cast<double>(factor) * table.limit * static_cast<double>(norm) /
                            (static_cast<double>(table.granularity) * padded));
}

// By the first warp.
DEVICE void MakeRamps(const ThcTable& table, const TableRamps& ramps, float norm, Shared& shared) {
  const u32 number = threadIdx.x;
  double slope = 0;
  float offset = 0, top = 0;
#pragma unroll
  for (u32 k = 0; k < kMostRamps; ++k)  // by choices, as above
    if (number == k) {
      slope = ramps.slopes[k];
      offset = ramps.offsets[k];
      top = ramps.tops[k];
    }
  if (number >= ramps.count) return;
  // To multiply by a power of two is to divide by the other.
  const float factor = FloatOf((254u << 23) - BitsOf(NormalisingFactor(norm)));
  const double unit = table.granularity / (2 * table.limit * static_cast<double>(norm)) * static_cast<double>(factor);
  shared.ramps[number] = {static_cast<float>(unit * slope), offset, top};
  if (number == 0) shared.scale = static_cast<float>(unit * ramps.fold.scale);
}

using Floats = Values<float, 4>;
using Words = Values<u32, 4>;
// Aligned to 16 bytes.
template <typename T>
DEVICE Values<T, 4> FourOf(const T* values) {
  return *reinterpret_cast<const Values<T, 4>*>(values);
}

struct FlippedElements {  // D x
  const float* x;         // of the block
  u32 size;
  float factor;
  const u32* signs;

  DEVICE Floats operator()(u32 e) const { return Flipped(e, Load<4>(x, e, size)); }
  DEVICE Floats Flipped(u32 e, Floats four) const {
    const auto words = FourOf(signs + e / kGroup * 8 + e % 8);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) four.at[j] *= Signed(factor, words.at[j], e);
    return four;
  }
};

// Of what FillWhole left.
DEVICE void FlipWhole(const FlippedElements& elements, float (&v)[kEach]) {
  const u32 first = FirstOfWhole();
#pragma unroll
  for (u32 q = 0; q < kEach; q += 4) {
    const auto four = elements.Flipped(first + OfWhole(q), {v[q], v[q + 1], v[q + 2], v[q + 3]});
#pragma unroll
    for (u32 j = 0; j < 4; ++j) v[q + j] = four.at[j];
  }
}

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

// From 0 to 1.
DEVICE float Saturated(float value) {
#ifdef __CUDA_ARCH__
  return __saturatef(value);  // part of the operation before it
#else
  return fminf(fmaxf(value, 0.0f), 1.0f);
#endif
}

template <u32 kUsed>
DEVICE float OnFold(const Fold& fold, float scale, float x) {
  const float y = Saturated(fabsf(x) * scale);
  float size = fmaf(y, fold.slope, fold.offset);
#pragma unroll
  for (u32 k = 0; k < kUsed; ++k) size = fmaf(fabsf(y - fold.at[k]), fold.bends[k], size);
  return fold.middle + FloatOf((BitsOf(x) & 0x80000000u) ^ BitsOf(size));
}

// Places of four coordinates, the sums of all ramps.
DEVICE void AllRamps(const Ramp* ramps, u32 count, const float* x, float (&places)[4]) {
#pragma unroll
  for (float& place : places) place = 0.5f;
#pragma unroll 1
  for (u32 k = 0; k < count; ++k) {
    const Ramp ramp = ramps[k];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) places[i] += OnRamp(ramp, x[i]);
  }
}

// How places of four coordinates are found.
struct ByOneRamp {
  static constexpr bool kIsExact = true;
  const Ramp ramp;

  DEVICE ByOneRamp(const TableRamps&, const Shared& shared) : ramp(shared.ramps[0]) {}
  DEVICE void operator()(const float* x, float (&places)[4]) const {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) places[i] = 0.5f + OnRamp(ramp, x[i]);
  }
};

struct ByAllRamps {
  static constexpr bool kIsExact = true;
  const TableRamps& ramps;
  const Shared& shared;

  DEVICE ByAllRamps(const TableRamps& ramps, const Shared& shared) : ramps(ramps), shared(shared) {}
  DEVICE void operator()(const float* x, float (&places)[4]) const { AllRamps(shared.ramps, ramps.count, x, places); }
};

template <u32 kUsed>  // bends
struct ByFold {
  static constexpr bool kIsExact = false;
  const Fold& fold;
  const float scale;

  DEVICE ByFold(const TableRamps& ramps, const Shared& shared) : fold(ramps.fold), scale(shared.scale) {}
  DEVICE void operator()(const float* x, float (&places)[4]) const {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) places[i] = OnFold<kUsed>(fold, scale, x[i]);
  }
};

// Of four codes with their fractions below: whether places off by less than kSlack may have changed one.
constexpr u32 kSlack = 2;
DEVICE bool IsClose(const u32 (&rounded)[4]) {
  u32 least = kAllLanes;
#pragma unroll
  for (const u32 word : rounded) least = min(least, (word + kSlack) << 16);
  return least < (2 * kSlack) << 16;
}

template <typename Places>
DEVICE void Quantise(const float (&v)[kEach], const TableRamps& ramps, const Shared& shared, Stream rounding, u32 first,
                     u32* codes) {
  const u32 t = threadIdx.x;
  const bool odd = t / 8 % 2 != 0;  // the high half of each word
  const u32 word = (first + t / kGroup) * (kGroup / 2) + (t / 16 % 16) * 8 + t % 8;
  constexpr u32 kStep = kThreads / 2;
  const Places places_of(ramps, shared);
#pragma unroll
  for (u32 r = 0; r < kEach; r += 4) {
    u32 halves[4], rounded[4];
#pragma unroll
    for (u32 pair = 0; pair < 4; pair += 2) {
      // Lanes t and t ^ 8 need both halves of the same two words: each makes one.
      const u32 made = RandomWord(rounding.low, rounding.high, word + (r + pair + (odd ? 1 : 0)) * kStep);
      const u32 got = __shfl_xor_sync(kAllLanes, made, 8);
      const u32 both = __byte_perm(made, got, odd ? 0x3276 : 0x5410);
      halves[pair] = both & 0xFFFF;
      halves[pair + 1] = both >> 16;
    }
    float places[4];
    places_of(v + r, places);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) rounded[i] = WholePart(places[i]) + halves[i];
    if (!Places::kIsExact && IsClose(rounded)) {
      AllRamps(shared.ramps, ramps.count, v + r, places);
#pragma unroll
      for (u32 i = 0; i < 4; ++i) rounded[i] = WholePart(places[i]) + halves[i];
    }
    codes[r / 4 * kThreads + PlaceOf(t)] = BytesOf(rounded, 2);
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

// What this multiprocessor should come to next is fetched into the L2 cache beside the work on this block: `words` a
// block from `from` on.
DEVICE void FetchLater([[maybe_unused]] const void* from, [[maybe_unused]] u32 words,
                       [[maybe_unused]] const Blocks& blocks, [[maybe_unused]] u32 number) {
#ifdef __CUDA_ARCH__
  constexpr u32 kLine = 32;  // words
  u32 multiprocessors;
  asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
  const u32 later = number + multiprocessors;
  if (later < blocks.end && threadIdx.x * kLine < words)
    asm volatile("prefetch.L2 [%0];" ::"l"(static_cast<const u32*>(from) + static_cast<u64>(later) * words +
                                           threadIdx.x * kLine));
#endif
}

template <bool kWhole>
DEVICE void Encode(const float* x, const Blocks& blocks, const ThcTable& table, const TableRamps& ramps,
                   Stream rounding, u32* codes) {
  DYNAMIC_SHARED(float, tile);
  __shared__ Shared shared;
  for (u32 number = blocks.first + blockIdx.x; number < blocks.end; number += gridDim.x) {
    const RotationBlock at = BlockAt<kWhole>(blocks.numel, number);
    const u32 first_group = at.begin / kGroup, groups = at.padded / kGroup;
    u32* const to = codes + first_group * 8 * table.bits;
    float v[kEach];
    if (kWhole) FillWhole([&](u32 e) { return FourOf(x + at.begin + e); }, v);  // on their way while the rest is made
    const float norm = blocks.norms[number];
    if (!Usable(norm)) {
      for (u32 i = threadIdx.x; i < groups * 8 * table.bits; i += kThreads) to[i] = 0;
      continue;
    }
    __syncthreads();  // the last block has been packed
    MakeSigns(blocks.signs.low, blocks.signs.high, at, shared.signs);
    if (kWhole) FetchLater(x, kMostRotation, blocks, number);
    if (threadIdx.x < 32) MakeRamps(table, ramps, norm, shared);
    __syncthreads();
    const FlippedElements elements{x + at.begin, at.size, NormalisingFactor(norm), shared.signs};
    if (kWhole) {
      FlipWhole(elements, v);
      RotateWhole(tile, v);
    } else {
      RotateParts(elements, at.padded, tile, v);
    }
    __syncthreads();
    auto* const places = reinterpret_cast<u32*>(tile);
    if (ramps.count == 1)
      Quantise<ByOneRamp>(v, ramps, shared, rounding, first_group, places);
    else if (ramps.is_folded == 0)
      Quantise<ByAllRamps>(v, ramps, shared, rounding, first_group, places);
    else if (ramps.count == 3)
      Quantise<ByFold<1>>(v, ramps, shared, rounding, first_group, places);
    else
      Quantise<ByFold<kBends>>(v, ramps, shared, rounding, first_group, places);
    __syncthreads();
    Pack(places, groups, table.bits, to);
  }
}

template <bool kWhole>
DEVICE void Residual(const float* x, const Blocks& blocks, const ThcTable& table, const u32* codes, float* residual) {
  DYNAMIC_SHARED(float, tile);
  __shared__ Shared shared;
  for (u32 number = blocks.first + blockIdx.x; number < blocks.end; number += gridDim.x) {
    const RotationBlock at = BlockAt<kWhole>(blocks.numel, number);
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
    const RotationBlock at = BlockAt<kWhole>(blocks.numel, number);
    const u32* const from = sums + at.begin / kGroup * (table.wide ? 128 : 64);
    const float norm = blocks.norms[number];
    if (!Usable(norm)) {
      const float all = norm == 0 ? 0.0f : FloatOf(0x7FC00000u);
      for (u32 i = threadIdx.x; i < at.size; i += kThreads) out[at.begin + i] = all;
      continue;
    }
    __syncthreads();  // the last block has been flipped back
    MakeSigns(blocks.signs.low, blocks.signs.high, at, shared.signs);  // seen behind the barriers of Rotate
    if (kWhole) FetchLater(sums, kMostRotation / (table.wide ? 2 : 4), blocks, number);
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
    RotateParts(FlippedElements{x + at.begin, at.size, factor, shared.signs}, at.padded, tile, v);
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

KERNEL(1024) thc_encode(const float* x, Blocks blocks, ThcTable table, TableRamps ramps, Stream rounding,
                        u32* codes) {
  Encode<false>(x, blocks, table, ramps, rounding, codes);
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

KERNEL(1024) thc_encode_whole(const float* x, Blocks blocks, ThcTable table, TableRamps ramps, Stream rounding,
                              u32* codes) {
  Encode<true>(x, blocks, table, ramps, rounding, codes);
}
KERNEL(1024) thc_residual_whole(const float* x, Blocks blocks, ThcTable table, const u32* codes, float* out) {
  Residual<true>(x, blocks, table, codes, out);
}
KERNEL(1024) thc_decode_whole(const u32* sums, Blocks blocks, ThcTable table, u32 count, float factor, float* out) {
  Decode<true>(sums, blocks, table, count, factor, out);
}
