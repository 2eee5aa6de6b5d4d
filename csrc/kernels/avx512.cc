// Compiled with -mavx512{f,bw,dq,vl}; runs only where the CPU has them.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define BYTEPS_LIKE_ISA avx512
#define BYTEPS_LIKE_VECTOR_BYTES 64
#include <immintrin.h>

#include "csrc/kernels/loops.h"

namespace byteps_like::kernels {
namespace avx512 {
namespace {

BYTEPS_LIKE_INLINE Floats HalfToFloat(const HalfWords& half) {
  return (Floats)_mm512_maskz_cvtph_ps(0xFFFF, (__m256i)half);
}
BYTEPS_LIKE_INLINE HalfWords FloatToHalf(const Floats& value) {
  return (HalfWords)_mm512_maskz_cvtps_ph(0xFFFF, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace
}  // namespace avx512

constexpr Table kAvx512 = avx512::MakeTable("avx512");

}  // namespace byteps_like::kernels
#endif
