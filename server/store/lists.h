// The lists of ids that a link has announced for a table, by number. On the shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "csrc/wire/frame.h"
#include "server/store/content/content.h"

namespace byteps_like {

class IdLists {
 public:
  // A segment of a list, from a KEYS frame that DecodeHeader has accepted. kCorrupt: it is out of order, or the list is
  // not what a list is; kCapacity.
  Status Add(const Header& header, const std::byte* payload, ShardMemory& memory);
  // Whole, and of that CRC32C; nullptr: there is none.
  std::shared_ptr<const IdList> Find(uint32_t number, uint32_t crc) const;
  void Clear() { lists_.clear(); }

 private:
  struct Arriving {
    std::shared_ptr<IdList> list;
    uint32_t counted = 0, total = 0;  // bytes
    uint32_t crc = 0;                 // of those that were counted
    bool is_whole() const { return counted == total; }
  };
  Status Count(Arriving& arriving, const Header& header, const std::byte* payload);

  std::map<uint32_t, Arriving> lists_;  // by number
};

}  // namespace byteps_like
