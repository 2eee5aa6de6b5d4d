// fp16 and bf16 (compression/quantised/casts.cc). Floor: encode reads 4 and writes 2 bytes an element, residual 6 and 4, decode
// 2 and 4.
#include "device.cuh"

namespace {

constexpr u32 kEach = 8;  // elements of a thread: 16 bytes of 16-bit floats

struct Half {
  static DEVICE u16 From(float value) { return FloatToHalf(value); }
  static DEVICE float To(u16 bits) { return HalfToFloat(bits); }
};

struct BFloat {
  static DEVICE u16 From(float value) { return FloatToBFloat(value); }
  static DEVICE float To(u16 bits) { return BFloatToFloat(bits); }
};

template <typename F>
DEVICE void Encode(const float* x, u32 numel, u16* payload) {
  for (u64 i = FirstIndex() * kEach; i < numel; i += IndexStride() * kEach) {
    const auto values = Load<kEach>(x, i, numel);
    Values<u16, kEach> narrow;
#pragma unroll
    for (u32 j = 0; j < kEach; ++j) narrow.at[j] = F::From(values.at[j]);
    Store(payload, i, numel, narrow);
  }
}

// `residual` may be `x`.
template <typename F>
DEVICE void Residual(const float* x, u32 numel, const u16* payload, float* residual) {
  for (u64 i = FirstIndex() * kEach; i < numel; i += IndexStride() * kEach) {
    auto values = Load<kEach>(x, i, numel);
    const auto narrow = Load<kEach>(payload, i, numel);
#pragma unroll
    for (u32 j = 0; j < kEach; ++j) values.at[j] += F::To(narrow.at[j]) * -1.0f;
    Store(residual, i, numel, values);
  }
}

template <typename F>
DEVICE void Decode(const u16* result, u32 numel, float factor, float* out) {
  for (u64 i = FirstIndex() * kEach; i < numel; i += IndexStride() * kEach) {
    const auto narrow = Load<kEach>(result, i, numel);
    Values<float, kEach> values;
#pragma unroll
    for (u32 j = 0; j < kEach; ++j) values.at[j] = F::To(narrow.at[j]) * factor;
    Store(out, i, numel, values);
  }
}

}  // namespace

KERNEL(256) casts_encode_fp16(const float* x, u32 numel, u16* payload) { Encode<Half>(x, numel, payload); }
KERNEL(256) casts_encode_bf16(const float* x, u32 numel, u16* payload) { Encode<BFloat>(x, numel, payload); }

KERNEL(256) casts_residual_fp16(const float* x, u32 numel, const u16* payload, float* residual) {
  Residual<Half>(x, numel, payload, residual);
}
KERNEL(256) casts_residual_bf16(const float* x, u32 numel, const u16* payload, float* residual) {
  Residual<BFloat>(x, numel, payload, residual);
}

KERNEL(256) casts_decode_fp16(const u16* result, u32 numel, float factor, float* out) {
  Decode<Half>(result, numel, factor, out);
}
KERNEL(256) casts_decode_bf16(const u16* result, u32 numel, float factor, float* out) {
  Decode<BFloat>(result, numel, factor, out);
}
