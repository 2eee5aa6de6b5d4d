// Fixed-point integers with an exponent per block (compression/quantised/fixed.cc, compression/loops/fixed.cc). Floor: prepare
// reads 4 bytes an element, encode reads 4 and writes 2 or 4, residual reads and writes 4 more, decode reads 2 or 4 and
// writes 4; exponents are a byte per block.
#include "device.cuh"

namespace {

constexpr u32 kThreads = 256;
constexpr u32 kEach = 8;  // elements of a thread; blocks have 16 and more, so they lie in two of them at most
constexpr i32 kZero = -127;
constexpr i32 kTooLarge = 127;

DEVICE i8 ExponentOf(u32 magnitude) {
  const i32 exponent = static_cast<i32>(magnitude >> 23) - 127;
  return static_cast<i8>(exponent < kTooLarge ? exponent : kTooLarge);
}

DEVICE u32 GreatestOf(const float* x, u64 first, u64 end, u64 stride) {
  u32 most = 0;
  for (u64 i = first; i < end; i += stride) {
    const auto values = Load<4>(x, i, end);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) most = max(most, MagnitudeOf(values.at[j]));
  }
  return most;
}

DEVICE float PowerOfTwo(i32 exponent) { return FloatOf(static_cast<u32>(exponent + 127) << 23); }
DEVICE i32 ShiftOf(i32 exponent, i32 magnitude) { return min(magnitude - (exponent + 1), 126); }

// What elements are multiplied by; 0: they all become 0.
DEVICE float ScaleOf(i32 exponent, i32 magnitude) {
  return exponent <= kZero || exponent == kTooLarge ? 0.0f : PowerOfTwo(ShiftOf(exponent, magnitude));
}

DEVICE float StepOf(i32 exponent, i32 magnitude) {
  if (exponent == kTooLarge) return FloatOf(0x7FC00000u);
  return exponent <= kZero ? 0.0f : PowerOfTwo(-ShiftOf(exponent, magnitude));
}

// The exponents of the kEach elements from `first` on: of those before `turn` one, from there on the other.
struct Exponents {
  i32 before, from;
  u32 turn;
};

DEVICE Exponents ExponentsAt(const i8* agreed, u64 first, u32 numel, u32 block) {
  const u32 number = static_cast<u32>(first) / block;
  const u32 turn = block - static_cast<u32>(first) % block;
  const i32 before = agreed[number];
  const bool is_split = turn < kEach && first + turn < numel;
  return {before, is_split ? agreed[number + 1] : before, turn};
}

template <typename T>
DEVICE void Encode(const float* x, u32 numel, u32 block, i32 magnitude, const i8* agreed, T* payload) {
  for (u64 i = FirstIndex() * kEach; i < numel; i += IndexStride() * kEach) {
    const Exponents exponents = ExponentsAt(agreed, i, numel, block);
    const float before = ScaleOf(exponents.before, magnitude), from = ScaleOf(exponents.from, magnitude);
    const auto values = Load<kEach>(x, i, numel);
    Values<T, kEach> integers;
#pragma unroll
    for (u32 j = 0; j < kEach; ++j) {
      const float scale = j < exponents.turn ? before : from;
      integers.at[j] = static_cast<T>(scale == 0.0f ? 0 : __float2int_rn(values.at[j] * scale));
    }
    Store(payload, i, numel, integers);
  }
}

// `base`: what is added to; nullptr: 0. It may be `out`.
template <typename T>
DEVICE void Decode(const T* integers, u32 numel, u32 block, i32 magnitude, const i8* agreed, float factor,
                   const float* base, float* out) {
  for (u64 i = FirstIndex() * kEach; i < numel; i += IndexStride() * kEach) {
    const Exponents exponents = ExponentsAt(agreed, i, numel, block);
    const float before = StepOf(exponents.before, magnitude), from = StepOf(exponents.from, magnitude);
    const auto whole = Load<kEach>(integers, i, numel);
    Values<float, kEach> values = {};
    if (base != nullptr) values = Load<kEach>(base, i, numel);
#pragma unroll
    for (u32 j = 0; j < kEach; ++j) {
      const float step = j < exponents.turn ? before : from;
      values.at[j] = values.at[j] + (static_cast<float>(whole.at[j]) * factor) * step;
    }
    Store(out, i, numel, values);
  }
}

}  // namespace

// A warp per block.
KERNEL(256) fixed_prepare(const float* x, u32 numel, u32 block, i8* prelude) {
  const u32 blocks = (numel - 1) / block + 1;
  for (u64 b = FirstIndex() / kWarp; b < blocks; b += IndexStride() / kWarp) {
    const u64 first = b * block, end = min(first + block, static_cast<u64>(numel));
    const u32 most = WarpMax(GreatestOf(x, first + 4 * LaneOf(), end, 4 * kWarp));
    if (LaneOf() == 0) prelude[b] = ExponentOf(most);
  }
}

// For large blocks: each thread block looks at `stretch` elements of one at a time, and then the last kernel at all.
// `greatest`: a word per block, zeroed.
KERNEL(256) fixed_greatest(const float* x, u32 numel, u32 block, u32 stretch, u32* greatest) {
  __shared__ u32 shared[kWarp];
  const u32 of_block = (block - 1) / stretch + 1;
  const u64 stretches = static_cast<u64>((numel - 1) / block + 1) * of_block;
  for (u64 s = blockIdx.x; s < stretches; s += gridDim.x) {
    const u64 first = s / of_block * block + s % of_block * stretch;
    const u64 end = min(min(first + stretch, (s / of_block + 1) * block), static_cast<u64>(numel));
    const u32 most = BlockMax(GreatestOf(x, first + 4 * threadIdx.x, end, 4 * kThreads), shared);
    if (threadIdx.x == 0) atomicMax(&greatest[s / of_block], most);
    __syncthreads();
  }
}

KERNEL(256) fixed_exponents(const u32* greatest, u32 blocks, i8* prelude) {
  for (u64 b = FirstIndex(); b < blocks; b += IndexStride()) prelude[b] = ExponentOf(greatest[b]);
}

KERNEL(256) fixed_encode_16(const float* x, u32 numel, u32 block, i32 magnitude, const i8* agreed, i16* payload) {
  Encode(x, numel, block, magnitude, agreed, payload);
}
KERNEL(256) fixed_encode_32(const float* x, u32 numel, u32 block, i32 magnitude, const i8* agreed, i32* payload) {
  Encode(x, numel, block, magnitude, agreed, payload);
}

KERNEL(256)
fixed_decode_16(const i16* integers, u32 numel, u32 block, i32 magnitude, const i8* agreed, float factor,
                const float* base, float* out) {
  Decode(integers, numel, block, magnitude, agreed, factor, base, out);
}
KERNEL(256)
fixed_decode_32(const i32* integers, u32 numel, u32 block, i32 magnitude, const i8* agreed, float factor,
                const float* base, float* out) {
  Decode(integers, numel, block, magnitude, agreed, factor, base, out);
}
