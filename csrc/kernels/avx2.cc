// Compiled with -mavx2 -mf16c -mfma; runs only where the CPU has them.
#if defined(__AVX2__) && defined(__F16C__)
#define BYTEPS_LIKE_ISA avx2
#define BYTEPS_LIKE_VECTOR_BYTES 32
#include <immintrin.h>

#include "csrc/kernels/loops.h"

namespace byteps_like::kernels {
namespace avx2 {
namespace {

BYTEPS_LIKE_INLINE Floats HalfToFloat(const HalfWords& half) { return (Floats)_mm256_cvtph_ps((__m128i)half); }
BYTEPS_LIKE_INLINE HalfWords FloatToHalf(const Floats& value) {
  return (HalfWords)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace
}  // namespace avx2

constexpr Table kAvx2 = avx2::MakeTable("avx2");

}  // namespace byteps_like::kernels
#endif
