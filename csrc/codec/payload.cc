#include "csrc/codec/payload.h"

#include <string>

#include "csrc/wire/bytes.h"

namespace byteps_like {
namespace {

// Places of the fields; docs/how-to/compression.md has the same table.
enum Place : size_t { kCodecAt = 0, kVersionAt = 1, kCountAt = 2, kNumelAt = 4, kSpecAt = 8, kZeroAt = 12 };

Status Corrupt(const std::string& what) { return Status(Code::kCorrupt, "encoded payload: " + what); }

}  // namespace

void EncodePayloadHeader(const PayloadHeader& header, std::byte* out) {
  PutLittle(out + kCodecAt, header.codec);
  PutLittle(out + kVersionAt, header.version);
  PutLittle(out + kCountAt, header.count);
  PutLittle(out + kNumelAt, header.numel);
  PutLittle(out + kSpecAt, header.spec);
  PutLittle(out + kZeroAt, uint32_t{0});
}

Result<PayloadHeader> DecodePayloadHeader(std::span<const std::byte> payload) {
  if (payload.size() < kPayloadHeader) return Corrupt(std::to_string(payload.size()) + " bytes hold no header");
  const std::byte* const in = payload.data();
  const PayloadHeader header{.codec = GetLittle<uint8_t>(in + kCodecAt),
                             .version = GetLittle<uint8_t>(in + kVersionAt),
                             .count = GetLittle<uint16_t>(in + kCountAt),
                             .numel = GetLittle<uint32_t>(in + kNumelAt),
                             .spec = GetLittle<uint32_t>(in + kSpecAt)};
  if (header.version != 1) return Corrupt("version " + std::to_string(header.version) + " is unknown");
  if (header.count == 0 || header.numel == 0) return Corrupt("it is of nothing");
  if (GetLittle<uint32_t>(in + kZeroAt) != 0) return Corrupt("its last field is not zero");
  return header;
}

}  // namespace byteps_like
