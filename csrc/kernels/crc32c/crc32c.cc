#include "csrc/kernels/crc32c/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace byteps_like::kernels {
namespace {

using Slices = std::array<std::array<uint32_t, 256>, 8>;

// slices[k][b]: what byte b does to the checksum when k further bytes follow it.
constexpr Slices MakeSlices() {
  Slices slices{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) ? kCastagnoli : 0u);
    slices[0][byte] = value;
  }
  for (size_t k = 1; k < slices.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = slices[k - 1][byte];
      slices[k][byte] = (before >> 8) ^ slices[0][before & 255u];
    }
  }
  return slices;
}
constexpr Slices kSlices = MakeSlices();

uint64_t LoadLittleEndian(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return std::endian::native == std::endian::little ? word : __builtin_bswap64(word);
}

}  // namespace

uint32_t Crc32cTable(uint32_t seed, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t crc = ~seed;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word = LoadLittleEndian(at) ^ crc;
    crc = 0;
    for (size_t k = kSlices.size(); k-- > 0; word >>= 8) crc ^= kSlices[k][word & 255u];
  }
  for (; bytes > 0; --bytes, ++at) crc = (crc >> 8) ^ kSlices[0][(crc ^ *at) & 255u];
  return ~crc;
}

}  // namespace byteps_like::kernels
