// What all kernels share, and all that they may include. It includes nothing itself, so that nvcc, NVRTC and the
// software GPU of the tests (tests/software_gpu/cuda.h) take the same files; README.md has the rules.
#pragma once

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// How every kernel begins, at the start of a line: KERNEL(256) casts_encode_bf16(...). `threads`: of a block, always.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define DEVICE __device__ __forceinline__
// Shared memory whose bytes the launch says, as an array of `type`, aligned to 16.
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared)
#endif

constexpr u32 kAllLanes = 0xFFFFFFFFu;
constexpr u32 kWarp = 32;

// The first index of this thread and the stride of a loop over `count` indices, of any grid.
DEVICE u64 FirstIndex() { return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; }
DEVICE u64 IndexStride() { return static_cast<u64>(gridDim.x) * blockDim.x; }

// ---- bits ----

DEVICE u32 BitsOf(float value) { return __float_as_uint(value); }
DEVICE float FloatOf(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 MagnitudeOf(float value) { return BitsOf(value) & 0x7FFFFFFFu; }

// Byte `which` (0: the lowest) of each of four words, as a word.
DEVICE u32 BytesOf(const u32 (&words)[4], u32 which) {
  const u32 pair = which | (4 + which) << 4;
  return __byte_perm(__byte_perm(words[0], words[1], pair), __byte_perm(words[2], words[3], pair), 0x5410);
}

// ---- random numbers: csrc/codec/random.h; launches pass the two words of a Stream64 ----

DEVICE u32 RandomWord(u32 low, u32 high, u32 i) {
  u32 word = i * 0x9E3779B1u + low;
  word ^= word >> 16;
  word *= 0x21F0AAADu;
  word = (word ^ (word >> 15)) + high;
  word *= 0x735A2D97u;
  return word ^ (word >> 15);
}

// In [0, 1), in steps of 2^-24.
DEVICE float ToUnit(u32 word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// ---- 16-bit floats: the bits of csrc/kernels/lanes.h ----

// The instruction makes every NaN the same one; the CPU keeps what it can of it.
DEVICE u16 FloatToHalf(float value) {
  const u32 bits = BitsOf(value);
  const u32 sign = (bits >> 16) & 0x8000u;
  const u32 magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<u16>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
#ifdef __CUDA_ARCH__
  u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  if (magnitude >= 0x47800000u) return static_cast<u16>(sign | 0x7C00u);  // 65536 and more
  if (magnitude >= 0x38800000u) {                                         // a normal number, or rounds up to infinity
    const u32 rebased = magnitude - (112u << 23);
    return static_cast<u16>(sign | ((rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13));
  }
  // A number whose last place is that of the denormals: adding it rounds to them, to nearest even.
  return static_cast<u16>(sign | (BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f)));
#endif
}

DEVICE float HalfToFloat(u16 half) {
  const u32 sign = static_cast<u32>(half & 0x8000u) << 16;
  const u32 magnitude = half & 0x7FFFu;
  if (magnitude > 0x7C00u) return FloatOf(sign | 0x7FC00000u | (magnitude << 13));
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  if (magnitude == 0x7C00u) return FloatOf(sign | 0x7F800000u);
  if (magnitude >= 0x400u) return FloatOf(sign | ((magnitude << 13) + (112u << 23)));
  return FloatOf(sign | BitsOf(static_cast<float>(magnitude) * 0x1p-24f));
#endif
}

// To nearest even; every NaN becomes 0x7FC0.
DEVICE u16 FloatToBFloat(float value) {
  const u32 bits = BitsOf(value);
  const u32 rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  return static_cast<u16>(value != value ? 0x7FC0u : rounded >> 16);
}

DEVICE float BFloatToFloat(u16 bits) { return FloatOf(static_cast<u32>(bits) << 16); }

// ---- memory ----

// kCount values that are loaded and stored as one, where their address allows it.
template <typename T, u32 kCount>
struct __align__(sizeof(T) * kCount <= 16 ? sizeof(T) * kCount : 16) Values {
  T at[kCount];
};

template <typename V>
DEVICE bool IsAligned(const void* address) {
  return (reinterpret_cast<u64>(address) & (alignof(V) - 1)) == 0;
}

// from[first] and the next, of an array of `count`; 0 behind its end. `first` is below `count`.
template <u32 kCount, typename T>
DEVICE Values<T, kCount> Load(const T* from, u64 first, u64 count) {
  using V = Values<T, kCount>;
  if (first + kCount <= count && IsAligned<V>(from + first)) return *reinterpret_cast<const V*>(from + first);
  V values;
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) values.at[i] = first + i < count ? from[first + i] : T(0);
  return values;
}

template <u32 kCount, typename T>
DEVICE void Store(T* to, u64 first, u64 count, const Values<T, kCount>& values) {
  using V = Values<T, kCount>;
  if (first + kCount <= count && IsAligned<V>(to + first)) {
    *reinterpret_cast<V*>(to + first) = values;
    return;
  }
#pragma unroll
  for (u32 i = 0; i < kCount; ++i)
    if (first + i < count) to[first + i] = values.at[i];
}

// The bytes of a word from the lowest on.
DEVICE Values<u8, 4> BytesIn(u32 word) {
  return {static_cast<u8>(word), static_cast<u8>(word >> 8), static_cast<u8>(word >> 16), static_cast<u8>(word >> 24)};
}

// ---- warps and blocks; all threads of it take part ----

DEVICE u32 LaneOf() { return threadIdx.x % kWarp; }
DEVICE u32 WarpOf() { return threadIdx.x / kWarp; }

// Integers only: sums of floats go in the CPU's order.
DEVICE u32 WarpSum(u32 value) {
#pragma unroll
  for (u32 step = kWarp / 2; step != 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

DEVICE u32 WarpMax(u32 value) {
#pragma unroll
  for (u32 step = kWarp / 2; step != 0; step /= 2) {
    const u32 other = __shfl_xor_sync(kAllLanes, value, step);
    value = other > value ? other : value;
  }
  return value;
}

// The sum of the values of the lanes before this one.
DEVICE u32 WarpSumBefore(u32 value) {
  u32 sum = value;
#pragma unroll
  for (u32 step = 1; step < kWarp; step *= 2) {
    const u32 other = __shfl_up_sync(kAllLanes, sum, step);
    sum += LaneOf() >= step ? other : 0;
  }
  return sum - value;
}

// `shared`: kWarp words. All threads get the result; `shared` may be used again behind the next __syncthreads.
DEVICE u32 BlockMax(u32 value, u32* shared) {
  value = WarpMax(value);
  if (LaneOf() == 0) shared[WarpOf()] = value;
  __syncthreads();
  return WarpMax(LaneOf() < blockDim.x / kWarp ? shared[LaneOf()] : 0);
}

DEVICE u32 BlockSum(u32 value, u32* shared) {
  value = WarpSum(value);
  if (LaneOf() == 0) shared[WarpOf()] = value;
  __syncthreads();
  return WarpSum(LaneOf() < blockDim.x / kWarp ? shared[LaneOf()] : 0);
}

// The sum of the values of the threads before this one, and of all.
DEVICE u32 BlockSumBefore(u32 value, u32* shared, u32* total) {
  const u32 before = WarpSumBefore(value);
  if (LaneOf() == kWarp - 1) shared[WarpOf()] = before + value;
  __syncthreads();
  const u32 warps = LaneOf() < blockDim.x / kWarp ? shared[LaneOf()] : 0;
  *total = WarpSum(warps);
  return before + __shfl_sync(kAllLanes, WarpSumBefore(warps), static_cast<i32>(WarpOf()));
}

// offsets[i] becomes the sum of the counts before i, of `count`; returns the sum of all. `fours(i)`: counts i to i + 3,
// zeros behind the end; they may be in `offsets`. `shared`: kWarp words. One block of 1024 threads: each warp adds up a
// stretch of the counts, and goes through it again when the sums of those before it are known.
template <typename Fours>
DEVICE u32 BlockOffsets(const Fours& fours, u32 count, u32* offsets, u32* shared) {
  constexpr u32 kRow = 4 * kWarp;
  const u32 rows = (count + kRow - 1) / kRow, warps = blockDim.x / kWarp;
  const u32 stretch = (rows + warps - 1) / warps * kRow;
  const u32 begin = min(WarpOf() * stretch, count), end = min(begin + stretch, count);
  u32 own = 0, all;
#pragma unroll 8
  for (u32 i = begin + 4 * LaneOf(); i < end; i += kRow) {
    const auto four = fours(i);
    own += four.at[0] + four.at[1] + four.at[2] + four.at[3];
  }
  u32 before = __shfl_sync(kAllLanes, BlockSumBefore(own, shared, &all), 0);
  auto next = fours(min(begin + 4 * LaneOf(), count));
  for (u32 row = begin; row < end; row += kRow) {
    auto four = next;
    next = fours(min(row + kRow + 4 * LaneOf(), count));  // a row ahead of the stores
    const u32 sum = four.at[0] + four.at[1] + four.at[2] + four.at[3], at = before + WarpSumBefore(sum);
    before = __shfl_sync(kAllLanes, at + sum, kWarp - 1);
    u32 here = at;
#pragma unroll
    for (u32& value : four.at) {
      const u32 counted = value;
      value = here;
      here += counted;
    }
    Store(offsets, row + 4 * LaneOf(), end, four);
  }
  __syncthreads();
  return all;
}
