// What the checksums for x86-64 share. Each file that includes it has a copy, compiled with its own options.
#pragma once

#include <immintrin.h>

#include "csrc/kernels/crc32c/crc32c.h"

namespace byteps_like::kernels {
namespace {

inline uint64_t Load64(const uint8_t* from) {
  uint64_t word;
  __builtin_memcpy(&word, from, sizeof(word));
  return word;
}

// crc times x^(33 + e), where constant is x^e, unreduced: as if it were the next 8 bytes of data with a checksum of 0.
inline uint64_t Multiply(uint32_t crc, uint32_t constant) {
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(crc)), _mm_cvtsi32_si128(static_cast<int>(constant)), 0);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(product));
}

}  // namespace
}  // namespace byteps_like::kernels
