// Compiled with -mavx2 -mf16c -mfma; runs only where the CPU has them.
#if defined(__AVX2__) && defined(__F16C__)
#define BYTEPS_LIKE_ISA avx2
#define BYTEPS_LIKE_VECTOR_BYTES 32
#define BYTEPS_LIKE_STREAM_BYTES 32
#include <immintrin.h>

#include "csrc/kernels/make_table.h"

namespace byteps_like::kernels {
namespace avx2 {
namespace {

BYTEPS_LIKE_INLINE bool AnyNan(const StreamFloats& a, const StreamFloats& b) {
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0;
}
BYTEPS_LIKE_INLINE Longs Products(const Longs& a, const Longs& b) {
  return (Longs)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
BYTEPS_LIKE_INLINE Words Widened(const HalfWords& bits) { return (Words)_mm256_cvtepu16_epi32((__m128i)bits); }
BYTEPS_LIKE_INLINE HalfWords UpperHalves(const Words& bits) {
  const __m256i low = _mm256_srli_epi32((__m256i)bits, 16);
  const __m256i packed = _mm256_packus_epi32(low, low);  // within each half of the register
  return (HalfWords)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
BYTEPS_LIKE_INLINE Words Widened(const Bytes& bytes) {
  return (Words)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(BitCast<int64_t>(bytes)));
}
BYTEPS_LIKE_INLINE Bytes LowBytes(const Words& bits) {
  const __m256i halves = _mm256_packus_epi32((__m256i)bits, (__m256i)bits);  // within each half of the register
  const __m128i joined = _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, _MM_SHUFFLE(3, 1, 2, 0)));
  return BitCast<Bytes>(_mm_cvtsi128_si64(_mm_packus_epi16(joined, joined)));
}
BYTEPS_LIKE_INLINE Floats HalfToFloat(const HalfWords& half) { return (Floats)_mm256_cvtph_ps((__m128i)half); }
BYTEPS_LIKE_INLINE HalfWords FloatToHalf(const Floats& value) {
  return (HalfWords)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace
}  // namespace avx2

constexpr Table kAvx2 = avx2::MakeTable("avx2");

}  // namespace byteps_like::kernels
#endif
