// What a rank wants of a table: rows of a list, only those that it has too old, or a range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "csrc/wire/frame.h"
#include "server/store/content/rows.h"

namespace byteps_like {

struct Fetch {
  // Of a FETCH frame that DecodeHeader has accepted; `list` is the one that it names, nullptr for a range. kCorrupt:
  // its payload doesn't go with the list; kCapacity.
  static Result<Fetch> From(const Header& header, const std::byte* payload, std::shared_ptr<const IdList> list,
                            ShardMemory& memory);

  bool of_all() const { return list != nullptr && !bound; }  // a row for each id: what filters are for
  // As it is now. kCapacity; kInvalid: it is longer than an answer may be.
  Result<RowAnswer> Answer(const RowContent& rows) const;

  uint32_t number = 0;                 // of the request
  std::shared_ptr<const IdList> list;  // nullptr: the range
  IdRange range;
  uint32_t count = 0;             // rows of the range, at most; 0: all
  std::optional<uint64_t> bound;  // only those whose version is more than this beyond the known one
  ShardBuffer known;              // u32 for each id
};

}  // namespace byteps_like
