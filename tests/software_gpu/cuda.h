// CUDA's language for g++, included before every line of a kernel: what the files of csrc/cuda use of it, and no more.
// One thread of a block runs at a time, each on a stack of its own, and gives way where it waits for others; blocks run
// one after the other. So kernels give the bits that they give on a device, at some percent of a CPU's speed, and the
// address sanitizer sees what they touch. For tests only.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __constant__ static const
#define __shared__ static  // launches take turns
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define DYNAMIC_SHARED(type, name) type* const name = reinterpret_cast<type*>(software_gpu::dynamic_shared)

namespace software_gpu {

struct Position {
  unsigned int x = 0, y = 0, z = 0;
};

// Of the thread that runs.
extern Position thread_index, block_index, block_size, grid_size;
extern unsigned char* dynamic_shared;

// Waits until all threads of the warp (block) are here; `what` must be the same for all. Returns what each of them
// brought: of the warp's lanes (a thread of the block), until the thread waits once more.
const unsigned long long* MeetWarp(const char* what, unsigned int mask, unsigned long long value);
const unsigned long long* MeetBlock(const char* what, unsigned long long value);
// Ends the launch with this failure.
[[noreturn]] void Fail(const char* what);

template <typename T>
unsigned long long Pack(T value) {
  static_assert(sizeof(T) <= sizeof(unsigned long long));
  unsigned long long bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

template <typename T>
T Unpack(unsigned long long bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename T>
T Shuffle(const char* what, unsigned int mask, T value, unsigned int from) {
  return Unpack<T>(MeetWarp(what, mask, Pack(value))[from % 32]);
}

template <typename T, typename F>
T Atomically(T* address, F change) {
  static_assert(!std::is_floating_point_v<T>, "the order of a sum of floats is the CPU's");
  const T old = *address;
  *address = change(old);
  return old;
}

inline unsigned int Lane() { return thread_index.x % 32; }

// As the device's conversions to int: kept within its range, 0 for NaN.
inline int Saturated(double whole) {
  if (whole != whole) return 0;
  return whole >= 0x1p31 ? 0x7FFFFFFF : whole < -0x1p31 ? -0x7FFFFFFF - 1 : static_cast<int>(whole);
}

}  // namespace software_gpu

#define threadIdx software_gpu::thread_index
#define blockIdx software_gpu::block_index
#define blockDim software_gpu::block_size
#define gridDim software_gpu::grid_size

// ---- barriers ----

inline void __syncthreads() { software_gpu::MeetBlock("__syncthreads", 0); }
inline int __syncthreads_count(int predicate) {
  const auto* const all = software_gpu::MeetBlock("__syncthreads_count", predicate != 0);
  int count = 0;
  for (unsigned int i = 0; i < blockDim.x; ++i) count += static_cast<int>(all[i]);
  return count;
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate) == static_cast<int>(blockDim.x); }
inline void __syncwarp(unsigned int mask = 0xFFFFFFFFu) { software_gpu::MeetWarp("__syncwarp", mask, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() { software_gpu::Fail("__trap"); }

// ---- warps: whole ones ----

template <typename T>
T __shfl_sync(unsigned int mask, T value, int lane) {
  return software_gpu::Shuffle("__shfl_sync", mask, value, static_cast<unsigned int>(lane));
}
template <typename T>
T __shfl_xor_sync(unsigned int mask, T value, int with) {
  return software_gpu::Shuffle("__shfl_xor_sync", mask, value, software_gpu::Lane() ^ static_cast<unsigned int>(with));
}
template <typename T>
T __shfl_up_sync(unsigned int mask, T value, unsigned int by) {
  const unsigned int lane = software_gpu::Lane();
  return software_gpu::Shuffle("__shfl_up_sync", mask, value, lane >= by ? lane - by : lane);
}
template <typename T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int by) {
  const unsigned int lane = software_gpu::Lane();
  return software_gpu::Shuffle("__shfl_down_sync", mask, value, lane + by < 32 ? lane + by : lane);
}
inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
  const auto* const all = software_gpu::MeetWarp("__ballot_sync", mask, predicate != 0);
  unsigned int bits = 0;
  for (unsigned int lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned int>(all[lane]) << lane;
  return bits;
}
inline int __any_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) == 0xFFFFFFFFu; }
template <typename T>
unsigned int __match_any_sync(unsigned int mask, T value) {
  const auto* const all = software_gpu::MeetWarp("__match_any_sync", mask, software_gpu::Pack(value));
  unsigned int bits = 0;
  for (unsigned int lane = 0; lane < 32; ++lane)
    bits |= static_cast<unsigned int>(all[lane] == software_gpu::Pack(value)) << lane;
  return bits;
}

// ---- atomics ----

template <typename T>
T atomicAdd(T* address, T value) {
  return software_gpu::Atomically(address, [&](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMin(T* address, T value) {
  return software_gpu::Atomically(address, [&](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicMax(T* address, T value) {
  return software_gpu::Atomically(address, [&](T old) { return value > old ? value : old; });
}
template <typename T>
T atomicOr(T* address, T value) {
  return software_gpu::Atomically(address, [&](T old) { return old | value; });
}
template <typename T>
T atomicAnd(T* address, T value) {
  return software_gpu::Atomically(address, [&](T old) { return old & value; });
}
template <typename T>
T atomicXor(T* address, T value) {
  return software_gpu::Atomically(address, [&](T old) { return old ^ value; });
}
template <typename T>
T atomicExch(T* address, T value) {
  return software_gpu::Atomically(address, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  return software_gpu::Atomically(address, [&](T old) { return old == expected ? value : old; });
}

// ---- numbers ----

inline unsigned int __float_as_uint(float value) {
  return software_gpu::Unpack<unsigned int>(software_gpu::Pack(value));
}
inline int __float_as_int(float value) { return software_gpu::Unpack<int>(software_gpu::Pack(value)); }
inline float __uint_as_float(unsigned int bits) { return software_gpu::Unpack<float>(bits); }
inline float __int_as_float(int bits) { return software_gpu::Unpack<float>(software_gpu::Pack(bits)); }
inline long long __double_as_longlong(double value) {
  return software_gpu::Unpack<long long>(software_gpu::Pack(value));
}
inline double __longlong_as_double(long long bits) { return software_gpu::Unpack<double>(software_gpu::Pack(bits)); }
inline int __popc(unsigned int bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(bits)); }
inline int __clzll(long long bits) { return bits == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(bits)); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(high) << 32 | low;
  unsigned int value = 0;
  for (unsigned int i = 0; i < 4; ++i)
    value |= static_cast<unsigned int>((bytes >> (8 * ((selector >> (4 * i)) & 7u))) & 0xFFu) << (8 * i);
  return value;
}
inline int __float2int_rn(float value) { return software_gpu::Saturated(std::nearbyint(static_cast<double>(value))); }
inline int __float2int_rz(float value) { return software_gpu::Saturated(std::trunc(static_cast<double>(value))); }
template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}
