// CRC32C by table and by instruction, and the arithmetic they share: polynomials over GF(2) modulo the Castagnoli
// polynomial, bit-reflected (bit 31 is x^0), after M. Adler's crc32c.c and V. Gopal et al., "Fast CRC Computation for
// iSCSI Polynomial Using CRC32 Instruction" (Intel, 2011).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like::kernels {

// All: seed is the checksum so far (0 to begin); any alignment, any length.
uint32_t Crc32cTable(uint32_t seed, const void* data, size_t bytes);  // eight bytes at a time by table
uint32_t Crc32cX86(uint32_t seed, const void* data, size_t bytes);    // SSE4.2 and PCLMULQDQ; x86-64 only
uint32_t Crc32cFold(uint32_t seed, const void* data, size_t bytes);   // AVX2 and VPCLMULQDQ besides; x86-64 only
uint32_t Crc32cArm(uint32_t seed, const void* data, size_t bytes);    // CRC32 extension; aarch64 only

namespace {

constexpr uint32_t kCastagnoli = 0x82F63B78u;

// x^power mod P, by squaring would be shorter to run; this is only run by the compiler.
constexpr uint32_t PowerOfX(size_t power) {
  uint32_t value = 0x80000000u;
  for (; power > 0; --power) value = (value >> 1) ^ ((value & 1u) ? kCastagnoli : 0u);
  return value;
}

}  // namespace

}  // namespace byteps_like::kernels
