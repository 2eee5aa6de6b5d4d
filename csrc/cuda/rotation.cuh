// Random rotations of blocks of 256 to 32768 elements, x -> H D x and back (compression/quantised/rotation.h), by a thread block
// of 1024 threads. The additions come in the order of the CPU's, strides 8, 16, 32, 1, 2, 4, 64, 128, ..., so the bits
// are the same. Both ways end with element e of a block in register e / 1024 of thread e % 1024.
//
// RotateWhole: of 32768 elements, 32 in the registers of each thread, five strides at a time lie within a thread, but
// for the first two, which are between lanes, so that lanes load whole lines of memory; in between, all change places
// through shared memory, twice. That is 2 + 4 words an element there, and 132 KiB.
// RotateParts: any size in 33 KiB, which every device has: parts of 8192 elements are transformed in shared memory,
// three strides a sweep, and kept in registers, among which the last two strides are.
//
// No two lanes of a warp use one bank at a time: a word is left out after 32 and one more after 1024, so that bits b,
// b + 5 and b + 10 of a place move it by the same number of banks; a warp's lanes differ in five bits apart modulo 5.
#pragma once

#include "device.cuh"

namespace {

constexpr u32 kThreads = 1024;
constexpr u32 kEach = 32;             // elements of a thread
constexpr u32 kPart = 8192;           // elements
constexpr u32 kMostRotation = 32768;  // elements
constexpr u32 kLeastRotation = 256;

struct RotationBlock {
  u32 begin, size, padded;  // compression/quantised/rotation.h
};

DEVICE RotationBlock RotationAt(u32 numel, u32 number) {
  const u32 whole = numel / kMostRotation;
  if (number < whole) return {number * kMostRotation, kMostRotation, kMostRotation};
  u32 begin = whole * kMostRotation;
  for (u32 at = whole;; ++at) {
    const u32 rest = numel - begin;
    const u32 floor = 1u << (31 - __clz(static_cast<i32>(rest)));
    const u32 padded = floor < kLeastRotation ? kLeastRotation : floor;
    const u32 size = rest < padded ? rest : padded;
    if (at == number || size == rest) return {begin, size, padded};
    begin += size;
  }
}

// kWhole: known to be as large as blocks get.
template <bool kWhole>
DEVICE RotationBlock BlockAt(u32 numel, u32 number) {
  return kWhole ? RotationBlock{number * kMostRotation, kMostRotation, kMostRotation} : RotationAt(numel, number);
}

// The power of two that brings a norm into [1, 2), as far as fp32 has it.
DEVICE float NormalisingFactor(float norm) {
  const i32 exponent = static_cast<i32>(BitsOf(norm) >> 23 & 0xFF) - 127;
  const i32 wanted = exponent > 126 ? -126 : exponent < -126 ? 126 : -exponent;
  return FloatOf(static_cast<u32>(wanted + 127) << 23);
}

// Words of signs of a block: of group n, lane l at 8 n + l. All threads of the thread block.
DEVICE void MakeSigns(u32 low, u32 high, const RotationBlock& at, unsigned* signs) {
  signs[threadIdx.x] = RandomWord(low, high, at.begin / kLeastRotation * 8 + threadIdx.x);
}

// factor or -factor; `word` of signs is that of element e.
DEVICE float Signed(float factor, u32 word, u32 e) {
  return FloatOf(BitsOf(factor) ^ (word << (31 - e / 8 % 32) & 0x80000000u));
}

constexpr DEVICE u32 Padded(u32 place) { return place + (place >> 5) + (place >> 10); }

// The low bits of `value` at the places given.
constexpr DEVICE u32 Spread(u32 value, u32 a, u32 b, u32 c, u32 d, u32 e) {
  return (value & 1) << a | (value >> 1 & 1) << b | (value >> 2 & 1) << c | (value >> 3 & 1) << d |
         (value >> 4 & 1) << e;
}

// Of registers whose numbers differ by kStride.
template <u32 kStride, u32 kCount>
DEVICE void Butterflies(float (&v)[kCount]) {
#pragma unroll
  for (u32 i = 0; i < kCount; ++i)
    if ((i & kStride) == 0) {
      const float a = v[i], b = v[i + kStride];
      v[i] = a + b;
      v[i + kStride] = a - b;
    }
}

// Of lanes whose numbers differ by `lanes`.
DEVICE void Butterflies(float (&v)[kEach], u32 lanes) {
  const float sign = (threadIdx.x & lanes) == 0 ? 1.0f : -1.0f;
#pragma unroll
  for (float& value : v)
    value = fmaf(value, sign, __shfl_xor_sync(kAllLanes, value, lanes));  // rounds once: a + b, a - b
}

// The first element of those that a thread begins with, and the others' distance from it.
DEVICE u32 FirstOfWhole() {
  return Spread(threadIdx.x % 32, 2, 3, 4, 6, 10) | Spread(threadIdx.x / 32, 9, 11, 12, 13, 14);
}
constexpr DEVICE u32 OfWhole(u32 r) { return Spread(r, 0, 1, 5, 7, 8); }

// `fill(e)` gives elements e to e + 3 of the block.
template <typename Fill>
DEVICE void FillWhole(const Fill& fill, float (&v)[kEach]) {
  const u32 first = FirstOfWhole();
#pragma unroll
  for (u32 q = 0; q < kEach; q += 4) {
    const auto four = fill(first + OfWhole(q));
#pragma unroll
    for (u32 j = 0; j < 4; ++j) v[q + j] = four.at[j];
  }
}

// What FillWhole left; `tile`: Padded(kMostRotation) words.
DEVICE void RotateWhole(float* tile, float (&v)[kEach]) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Butterflies(v, 2);  // strides 8, 16
  Butterflies(v, 4);
  Butterflies<4>(v);  // 32, 1, 2
  Butterflies<1>(v);
  Butterflies<2>(v);
  const u32 from = Padded(FirstOfWhole());
#pragma unroll
  for (u32 r = 0; r < kEach; ++r) tile[from + Padded(OfWhole(r))] = v[r];
  __syncthreads();
  const u32 second = Padded(Spread(lane, 0, 1, 3, 4, 12) | Spread(warp, 5, 10, 11, 13, 14));
#pragma unroll
  for (u32 r = 0; r < kEach; ++r) v[r] = tile[second + Padded(Spread(r, 2, 6, 7, 8, 9))];
  Butterflies<1>(v);  // 4, 64, 128, 256, 512
  Butterflies<2>(v);
  Butterflies<4>(v);
  Butterflies<8>(v);
  Butterflies<16>(v);
#pragma unroll
  for (u32 r = 0; r < kEach; ++r) tile[second + Padded(Spread(r, 2, 6, 7, 8, 9))] = v[r];
  __syncthreads();
  const u32 third = Padded(threadIdx.x);
#pragma unroll
  for (u32 r = 0; r < kEach; ++r) v[r] = tile[third + Padded(kThreads * r)];
  Butterflies<1>(v);  // 1024 to 16384
  Butterflies<2>(v);
  Butterflies<4>(v);
  Butterflies<8>(v);
  Butterflies<16>(v);
}

// Strides 2^kBit, 2^(kBit + 1) and 2^(kBit + 2) of a part, as far as they are below `padded`.
template <u32 kBit>
DEVICE void Sweep(u32 padded, float* tile) {
  const u32 t = threadIdx.x, low = t & ((1u << kBit) - 1);
  const u32 begin = kBit == 3 ? (t & 7) | (t >> 3 & 3) << 8 | (t >> 5 & 3) << 6 | t >> 7 << 10 : (t - low) * 8 + low;
  const u32 from = Padded(begin);
  float v[8];
#pragma unroll
  for (u32 k = 0; k < 8; ++k) v[k] = tile[from + Padded(k << kBit)];
  if (1u << kBit < padded) Butterflies<1>(v);
  if (2u << kBit < padded) Butterflies<2>(v);
  if (4u << kBit < padded) Butterflies<4>(v);
#pragma unroll
  for (u32 k = 0; k < 8; ++k) tile[from + Padded(k << kBit)] = v[k];
  __syncthreads();
}

// `tile`: Padded(kPart) words. Elements from `padded` on become 0.
template <typename Fill>
DEVICE void RotateParts(const Fill& fill, u32 padded, float* tile, float (&v)[kEach]) {
#pragma unroll
  for (u32 part = 0; part < kMostRotation / kPart; ++part) {
#pragma unroll
    for (u32 k = 0; k < 8; ++k) v[8 * part + k] = 0;
    if (part * kPart >= padded) continue;
#pragma unroll 1  // registers are scarce
    for (u32 place = 4 * threadIdx.x; place < kPart; place += 4 * kThreads) {
      Values<float, 4> four = {};
      if (part * kPart + place < padded) four = fill(part * kPart + place);
#pragma unroll
      for (u32 j = 0; j < 4; ++j) tile[Padded(place) + j] = four.at[j];
    }
    __syncthreads();
    Sweep<3>(padded, tile);
    Sweep<0>(padded, tile);
    Sweep<6>(padded, tile);
    Sweep<9>(padded, tile);
#pragma unroll
    for (u32 k = 0; k < 8; ++k) v[8 * part + k] = tile[Padded(threadIdx.x) + Padded(kThreads * k)];
    __syncthreads();
  }
  if (4096 < padded) Butterflies<4>(v);
  if (8192 < padded) Butterflies<8>(v);
  if (16384 < padded) Butterflies<16>(v);
}

template <bool kWhole, typename Fill>
DEVICE void Rotate(const Fill& fill, u32 padded, float* tile, float (&v)[kEach]) {
  if (!kWhole) return RotateParts(fill, padded, tile, v);
  FillWhole(fill, v);
  RotateWhole(tile, v);
}

// ---- norms ----

constexpr u32 kNormThreads = 512;

// sum + value^2: the square is exact in fp64, so that this is one operation and rounds like the CPU's two.
DEVICE double AddSquare(double sum, float value) {
  const auto wide = static_cast<double>(value);
  return fma(wide, wide, sum);
}
DEVICE float Root(double energy) { return static_cast<float>(sqrt(energy)); }

// Whether every energy that differs from this one by less than 2^-41 of it has the same root in fp32. So has NaN.
DEVICE bool IsCertain(double energy) { return !(Root(energy * (1 - 0x1p-41)) < Root(energy * (1 + 0x1p-41))); }

// The sum in the CPU's order, by i mod 16 and then these sums: from the first thread.
DEVICE double EnergyInOrder(const float* x, u32 size, double* sums) {
  constexpr u32 kLanes = 16;
  double lane = 0, energy = 0;
  if (threadIdx.x < kLanes)
    for (u32 i = threadIdx.x; i < size; i += kLanes) lane = AddSquare(lane, x[i]);
  sums[threadIdx.x] = lane;
  __syncthreads();
  if (threadIdx.x == 0)
    for (u32 i = 0; i < kLanes; ++i) energy += sums[i];
  return energy;
}

// The root of the sum of x[i]^2, from the first of kNormThreads threads; `sums` has a place for each. 2048 additions in
// a row are off by less than 2^-42 of the sum: so the CPU's sum and this one, in whatever order, have one root in fp32
// but in one block of 2^17 or so, which is summed again in the CPU's order.
DEVICE float NormOf(const float* x, u32 size, double* sums) {
  double sum = 0;
#pragma unroll 4
  for (u32 i = 4 * threadIdx.x; i < size; i += 4 * kNormThreads) {
    const auto four = Load<4>(x, i, size);
    for (const float value : four.at) sum = AddSquare(sum, value);
  }
  sums[threadIdx.x] = sum;
  for (u32 half = kNormThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  double energy = sums[threadIdx.x];
  if (__syncthreads_or(threadIdx.x == 0 && !IsCertain(energy))) energy = EnergyInOrder(x, size, sums);
  const float norm = threadIdx.x == 0 ? Root(energy) : 0.0f;
  return norm == norm ? norm : FloatOf(0x7FC00000u);
}

}  // namespace
