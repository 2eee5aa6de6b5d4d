// The CRC32 extension of ARMv8-A, optional there and part of every server core; runs only where the CPU has it.
#if defined(__aarch64__)
#pragma GCC target("+crc")
#include <arm_acle.h>

#include "csrc/kernels/crc32c/crc32c.h"

namespace byteps_like::kernels {

uint32_t Crc32cArm(uint32_t seed, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t crc = ~seed;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    __builtin_memcpy(&word, at, sizeof(word));
    crc = __crc32cd(crc, word);
  }
  for (; bytes > 0; --bytes, ++at) crc = __crc32cb(crc, *at);
  return ~crc;
}

}  // namespace byteps_like::kernels
#endif
