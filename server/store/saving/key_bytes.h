// What a store key keeps, as STATE brings it (docs/reference/protocol.md, "Checkpoints"): bytes of a dense value or of
// its state, and pages of rows, each behind its version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/wire/saving.h"
#include "server/store/store_key.h"

namespace byteps_like {

Status InvalidRequest(const std::string& what);
Status Misfits();  // the fields of a request are too few, or too many

// Some bytes of a part of a dense value.
struct BytePlace {
  SavedPart part{};
  uint64_t offset = 0, bytes = 0;
};

// kInvalid: the key has no such bytes, or they are too many for a frame.
Result<BytePlace> PlaceOf(const StoreKey& key, uint8_t part, uint64_t offset, uint64_t bytes);
size_t BytesOf(const StoreKey& key, SavedPart part);

// `asked`: u8 part, u64 from where on, u64 how many. kInvalid.
Result<std::string> ReadBytes(const StoreKey& key, std::span<const std::byte> asked);
// `asked`: u64 place, then, where not all rows are wanted, a bit for each bucket. kInvalid.
Result<std::string> ReadRows(const StoreKey& key, std::span<const std::byte> asked);

}  // namespace byteps_like
