// The 16 bytes before every encoded payload and result (but those of kDense codecs, which are plain arrays).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "csrc/base/status.h"

namespace byteps_like {

inline constexpr uint32_t kPayloadHeader = 16;

struct PayloadHeader {
  uint8_t codec = 0;    // Codec::id
  uint8_t version = 1;  // of this layout
  uint16_t count = 1;   // contributions in it
  uint32_t numel = 0;   // elements of the partition
  uint32_t spec = 0;    // CRC32C of Codec::spec
  // 4 bytes of zeros
};

void EncodePayloadHeader(const PayloadHeader& header, std::byte* out);

// kCorrupt names what is wrong: length, version, what isn't zero. Whether codec, spec and numel are the expected ones
// is the caller's to check.
Result<PayloadHeader> DecodePayloadHeader(std::span<const std::byte> payload);

}  // namespace byteps_like
