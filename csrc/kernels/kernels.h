// SIMD kernels over dense arrays, chosen once at start-up by what the CPU can do (AVX-512, AVX2, NEON, scalar).
// All are pure functions on caller-owned memory: no allocation, no locks, thread-safe. Any alignment, any count
// including 0. Arrays of one call must be the same or disjoint. `count` is in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "csrc/base/dtype.h"

namespace byteps_like::kernels {

// Instruction set in use: "avx512", "avx2", "neon" or "scalar".
std::string_view InstructionSet();
// Forces one by name (tests and benchmarks; not thread-safe). False if this CPU lacks it.
bool SelectInstructionSet(std::string_view name);

// a[i] = a[i] op b[i] in `dtype` (16-bit and 8-bit floats: computed in fp32, rounded to nearest even, per call).
// kAverage acts as kSum (bool: as kProduct); kBroadcast takes b as it is. Integers wrap. min/max of floats give NaN if
// either is NaN, as torch does, and of 0 and -0 the first. What Supports (dtype.h) denies is computed all the same and
// means nothing. All instruction sets give the same bits, but for the payload of a NaN.
void Reduce(Op op, DType dtype, void* a, const void* b, size_t count);

// accumulator[i] = (or op=) widened(source[i]); accumulator is of AccumulatorOf(dtype).
void Widen(DType dtype, void* accumulator, const void* source, size_t count);
void Accumulate(Op op, DType dtype, void* accumulator, const void* source, size_t count);

// destination[i] = narrowed(accumulator[i] / divisor), divisor >= 1; integers towards zero, bool not at all;
// 16-bit and 8-bit floats are rounded once, to nearest even. destination may be the accumulator itself.
void Finalize(DType dtype, void* destination, const void* accumulator, size_t count, uint32_t divisor);

// Every destination = finalized reduction of all sources, in one pass over memory: works in stretches of 256 bytes that
// stay in registers (divided integers: 8 KiB in the first cache), so each source is read once and each destination
// written once. A destination may be one of the sources (in place). The order of summation is the order of `sources`.
void ReduceMany(Op op, DType dtype, std::span<void* const> destinations, std::span<const void* const> sources,
                size_t count, uint32_t divisor);

// data[i] *= factor, in fp32 for 16-bit and 8-bit floats; integers are multiplied in double, truncated towards zero and
// kept within their range (NaN gives 0). Not for bool.
void Scale(DType dtype, void* data, size_t count, double factor);

// Conversion between any two floating types (nearest even; from fp64 to 16 and 8 bits by way of fp32, as torch does).
// Values that are too large become 448 in float8_e4m3fn, infinity in the other types. The arrays are disjoint.
void Cast(DType from, DType to, void* destination, const void* source, size_t count);

// CRC32C (Castagnoli) of `bytes`, continuing from `seed` (0 to begin): hardware instruction where there is one.
uint32_t Crc32c(uint32_t seed, const void* data, size_t bytes);

}  // namespace byteps_like::kernels
