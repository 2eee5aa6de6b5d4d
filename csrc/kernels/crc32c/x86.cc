// Compiled with -msse4.2 -mpclmul; runs only where the CPU has them. The instruction takes 3 cycles but can begin in
// each: so a block is cut in three lanes, whose checksums run side by side and are put together by multiplication.
#if defined(__SSE4_2__) && defined(__PCLMUL__)
#include "csrc/kernels/crc32c/x86.h"

#include <immintrin.h>

namespace byteps_like::kernels {
namespace {

// Checksum of blocks of 3 * kLane bytes, as long as there are any.
template <size_t kLane>
inline void ThreeLanes(uint32_t& crc, const uint8_t*& at, size_t& bytes) {
  constexpr uint32_t kTwoLanesOn = PowerOfX(8 * (2 * kLane) - 33);
  constexpr uint32_t kOneLaneOn = PowerOfX(8 * kLane - 33);
  while (bytes >= 3 * kLane) {
    uint64_t first = crc, second = 0, third = 0;
    for (size_t i = 0; i + 8 < kLane; i += 8) {
      first = _mm_crc32_u64(first, Load64(at + i));
      second = _mm_crc32_u64(second, Load64(at + kLane + i));
      third = _mm_crc32_u64(third, Load64(at + 2 * kLane + i));
    }
    first = _mm_crc32_u64(first, Load64(at + kLane - 8));
    second = _mm_crc32_u64(second, Load64(at + 2 * kLane - 8));
    const uint64_t joined =
        Multiply(static_cast<uint32_t>(first), kTwoLanesOn) ^ Multiply(static_cast<uint32_t>(second), kOneLaneOn);
    crc = static_cast<uint32_t>(_mm_crc32_u64(third, Load64(at + 3 * kLane - 8) ^ joined));
    at += 3 * kLane;
    bytes -= 3 * kLane;
  }
}

}  // namespace

uint32_t Crc32cX86(uint32_t seed, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t crc = ~seed;
  ThreeLanes<4096>(crc, at, bytes);  // a page each: from memory 1.3 times faster than half of one
  ThreeLanes<1024>(crc, at, bytes);
  ThreeLanes<256>(crc, at, bytes);
  ThreeLanes<64>(crc, at, bytes);
  for (; bytes >= 8; bytes -= 8, at += 8) crc = static_cast<uint32_t>(_mm_crc32_u64(crc, Load64(at)));
  for (; bytes > 0; --bytes, ++at) crc = _mm_crc32_u8(crc, *at);
  return ~crc;
}

}  // namespace byteps_like::kernels
#endif
