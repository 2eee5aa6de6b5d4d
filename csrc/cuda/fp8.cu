// 8-bit floats, each block scaled by a power of two (compression/quantised/fp8.cc). Floor, in bytes an element with blocks of 32:
// encode reads 4 and writes 1.03, residual reads 5.03 and writes 4, decode reads 1.03 and writes 4. A warp takes tiles
// of 512 elements, in 16 registers a lane, and finds the greatest of a block by shuffles among the lanes that share it.
#include "device.cuh"

namespace {

constexpr u32 kChunk = 128;  // elements: four a lane
constexpr u32 kChunks = 4;   // of a tile
constexpr u32 kTile = kChunks * kChunk;
constexpr u32 kNotFinite = 255;

// A sign, then an exponent of bias kBias, then kMantissa bits: csrc/kernels/float8.h.
template <u32 kMantissa, u32 kBias, bool kHasInfinity>
struct Float8 {
  static constexpr u32 kShift = 23 - kMantissa;
  static constexpr u32 kLeastNormal = (128 - kBias) << 23;  // as fp32
  static constexpr u32 kTop = kHasInfinity ? 15 : 8;        // exponent of the greatest number

  // But for the sign; of what is not beyond the greatest number.
  static DEVICE u32 From(u32 magnitude) {
    const u32 odd = magnitude >> kShift & 1;
    const u32 normal = (magnitude - ((127 - kBias) << 23) + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    // A number whose last place is that of the denormals: adding it rounds to them, to nearest even.
    constexpr u32 kAnchor = (151 - kBias - kMantissa) << 23;
    const u32 denormal = BitsOf(FloatOf(magnitude) + FloatOf(kAnchor)) - kAnchor;
    return magnitude < kLeastNormal ? denormal : normal;
  }

  static DEVICE float To(u8 bits) {
    const u32 magnitude = bits & 0x7F;
    const u32 normal = (magnitude << kShift) + ((127 - kBias) << 23);
    const u32 denormal = BitsOf(FloatOf((magnitude << kShift) + kLeastNormal) - FloatOf(kLeastNormal));
    const u32 finite = magnitude < (1u << kMantissa) ? denormal : normal;
    const u32 special = kHasInfinity ? normal | 0x7F800000u : 0x7FC00000u;
    return FloatOf((magnitude >= (kHasInfinity ? 0x7Cu : 0x7Fu) ? special : finite) | u32{bits & 0x80u} << 24);
  }
};
using E4M3 = Float8<3, 7, false>;
using E5M2 = Float8<2, 15, true>;

using Floats = Values<float, 4>;

DEVICE u32 Greatest(u32 a, u32 b) { return a > b ? a : b; }

DEVICE u32 Magnitude(const Floats& four) {
  return Greatest(Greatest(MagnitudeOf(four.at[0]), MagnitudeOf(four.at[1])),
                  Greatest(MagnitudeOf(four.at[2]), MagnitudeOf(four.at[3])));
}

// From the bits of a block's greatest magnitude; rounded up where the mantissa is above 1.75.
DEVICE u32 ExponentOf(u32 most, u32 top) {
  if (most >= 0x7F800000u) return kNotFinite;
  const i32 exponent = static_cast<i32>((most + 0x1FFFFF) >> 23) - static_cast<i32>(top);
  return exponent < 1 ? 1 : static_cast<u32>(exponent);
}

// Each of a lane's fours gets the greatest of its block: among the chunks, then among the lanes that share it.
DEVICE void Gather(u32 block, u32 (&most)[kChunks]) {
  const u32 pair0 = Greatest(most[0], most[1]), pair1 = Greatest(most[2], most[3]);
  if (block > kChunk) most[0] = most[1] = pair0, most[2] = most[3] = pair1;
  if (block > 2 * kChunk) most[0] = most[1] = most[2] = most[3] = Greatest(pair0, pair1);
#pragma unroll
  for (u32 lanes = 1; lanes < kWarp; lanes *= 2)
    if (block > 4 * lanes) {
#pragma unroll
      for (u32 k = 0; k < kChunks; ++k) most[k] = Greatest(most[k], __shfl_xor_sync(kAllLanes, most[k], lanes));
    }
}

// Blocks of more than a tile are read by all the warps that have a tile of them; but for the first it is in the cache.
template <typename E>
DEVICE void Encode(const float* x, u32 numel, u32 log2, u8* payload) {
  const u32 block = 1u << log2;
  for (u64 begin = FirstIndex() / kWarp * kTile; begin < numel; begin += IndexStride() / kWarp * kTile) {
    const float* const from = x + begin + 4 * LaneOf();
    Floats v[kChunks];
    u32 most[kChunks];
    if (begin + kTile <= numel && IsAligned<Floats>(from)) {
#pragma unroll
      for (u32 k = 0; k < kChunks; ++k) v[k] = *reinterpret_cast<const Floats*>(from + k * kChunk);
    } else {
#pragma unroll
      for (u32 k = 0; k < kChunks; ++k) v[k] = Load<4>(x, begin + k * kChunk + 4 * LaneOf(), numel);
    }
#pragma unroll
    for (u32 k = 0; k < kChunks; ++k) most[k] = Magnitude(v[k]);
    if (block > kTile)
      for (u32 within = 4 * LaneOf(); within < block; within += kChunk)
        most[0] = Greatest(most[0], Magnitude(Load<4>(x, (begin >> log2 << log2) + within, numel)));
    Gather(block, most);
#pragma unroll
    for (u32 k = 0; k < kChunks; ++k) {
      const u64 i = begin + k * kChunk + 4 * LaneOf();
      const u32 exponent = ExponentOf(most[k], E::kTop);
      if ((i & (block - 1)) == 0 && i < numel) payload[numel + (i >> log2)] = static_cast<u8>(exponent);
      const float inverse = FloatOf((254 - exponent) << 23);
      u32 signs[4], numbers[4];
#pragma unroll
      for (u32 j = 0; j < 4; ++j) {
        signs[j] = BitsOf(v[k].at[j]);
        numbers[j] = E::From(MagnitudeOf(v[k].at[j] * inverse));
      }
      const u32 word = BytesOf(numbers, 0) | (BytesOf(signs, 3) & 0x80808080u);
      if (i < numel) Store(payload, i, numel, BytesIn(exponent == kNotFinite ? 0 : word));
    }
  }
}

// out = base + factor * what the payload says; no base: 0. `out` may be `base`.
template <typename E>
DEVICE void Decode(const u8* payload, u32 numel, u32 log2, float factor, const float* base, float* out) {
  for (u64 i = 4 * FirstIndex(); i < numel; i += 4 * IndexStride()) {
    const u32 exponent = payload[numel + (i >> log2)];
    const float step = factor * FloatOf(exponent == kNotFinite ? 0x7FC00000u : exponent << 23);
    const auto bytes = Load<4>(payload, i, numel);
    Floats four = {};
    if (base != nullptr) four = Load<4>(base, i, numel);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) four.at[j] = four.at[j] + step * E::To(bytes.at[j]);
    Store(out, i, numel, four);
  }
}

}  // namespace

KERNEL(256) fp8_encode_e4m3(const float* x, u32 numel, u32 log2, u8* payload) { Encode<E4M3>(x, numel, log2, payload); }
KERNEL(256) fp8_encode_e5m2(const float* x, u32 numel, u32 log2, u8* payload) { Encode<E5M2>(x, numel, log2, payload); }

KERNEL(256) fp8_decode_e4m3(const u8* payload, u32 numel, u32 log2, float factor, const float* base, float* out) {
  Decode<E4M3>(payload, numel, log2, factor, base, out);
}
KERNEL(256) fp8_decode_e5m2(const u8* payload, u32 numel, u32 log2, float factor, const float* base, float* out) {
  Decode<E5M2>(payload, numel, log2, factor, base, out);
}
