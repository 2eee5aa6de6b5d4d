// The sum of the same array of several processes of a host, whose memory is mapped here (kernels::ReduceMany of
// csrc/kernels/reduce_many.cc): fp32, in the order of the sources, rounded once. Floor: as many elements read as there
// are sources, over the link between the devices where they are on others, and one written.
#include "device.cuh"

namespace {

constexpr u32 kMost = 8;  // sources
constexpr u32 kEach = 8;  // elements of a thread

struct Sources {
  const void* at[kMost];
};

struct Float {
  using Stored = float;
  static DEVICE float From(float value) { return value; }
  static DEVICE float To(float value) { return value; }
};

struct Half {
  using Stored = u16;
  static DEVICE u16 From(float value) { return FloatToHalf(value); }
  static DEVICE float To(u16 bits) { return HalfToFloat(bits); }
};

struct BFloat {
  using Stored = u16;
  static DEVICE u16 From(float value) { return FloatToBFloat(value); }
  static DEVICE float To(u16 bits) { return BFloatToFloat(bits); }
};

// `out` may be one of the sources.
template <typename F>
DEVICE void Sum(const Sources& sources, u32 count, u64 numel, float divisor, void* out) {
  using T = typename F::Stored;
  for (u64 i = FirstIndex() * kEach; i < numel; i += IndexStride() * kEach) {
    Values<float, kEach> sum;
    const auto first = Load<kEach>(static_cast<const T*>(sources.at[0]), i, numel);
#pragma unroll
    for (u32 j = 0; j < kEach; ++j) sum.at[j] = F::To(first.at[j]);
#pragma unroll
    for (u32 s = 1; s < kMost; ++s) {
      if (s >= count) break;
      const auto values = Load<kEach>(static_cast<const T*>(sources.at[s]), i, numel);
#pragma unroll
      for (u32 j = 0; j < kEach; ++j) sum.at[j] += F::To(values.at[j]);
    }
    Values<T, kEach> result;
#pragma unroll
    for (u32 j = 0; j < kEach; ++j) result.at[j] = F::From(divisor == 1.0f ? sum.at[j] : sum.at[j] / divisor);
    Store(static_cast<T*>(out), i, numel, result);
  }
}

}  // namespace

KERNEL(256) peers_sum_float32(Sources sources, u32 count, u64 numel, float divisor, void* out) {
  Sum<Float>(sources, count, numel, divisor, out);
}
KERNEL(256) peers_sum_float16(Sources sources, u32 count, u64 numel, float divisor, void* out) {
  Sum<Half>(sources, count, numel, divisor, out);
}
KERNEL(256) peers_sum_bfloat16(Sources sources, u32 count, u64 numel, float divisor, void* out) {
  Sum<BFloat>(sources, count, numel, divisor, out);
}
