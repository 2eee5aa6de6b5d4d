// Which rows of a table an operation is about: their ids, as they travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace byteps_like {

struct RowList {
  explicit RowList(std::span<const uint64_t> ascending);
  size_t bytes() const { return ids.size() * sizeof(uint64_t); }
  bool operator==(const RowList& other) const { return crc == other.crc && ids == other.ids; }

  const std::vector<uint64_t> ids;
  const uint32_t crc;  // CRC32C of the bytes
};

}  // namespace byteps_like
