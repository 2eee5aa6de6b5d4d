// Lists of rows by number, as a table's server knows them on this link: a list travels once, and again when its number
// has gone to another. Those used longest ago go first, when numbers or bytes run out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "csrc/engine/keeping/row_list.h"
#include "csrc/transport/links/link.h"
#include "csrc/wire/frame.h"

namespace byteps_like {

class RowNumbers {
 public:
  struct Limits {
    uint32_t numbers = kMostLists;
    uint64_t bytes = 64u << 20;  // of ids that a server keeps for this rank beside those that are in use
  };
  RowNumbers() : RowNumbers(Limits()) {}
  explicit RowNumbers(Limits limits) : limits_(limits) {}

  // The list's number, its own until Release has been called as often; nullopt: all belong to others that are in use.
  std::optional<uint32_t> Hold(const std::shared_ptr<const RowList>& rows);
  void Release(uint32_t number);
  bool known(uint32_t number) const { return slots_[number].known; }  // to the server
  // The next frame of those that tell it, but for whose key it is.
  void Announce(uint32_t number, size_t segment, Outgoing& next);
  // It says that it does not know a list of this checksum. False: nor is it the one that has this number.
  bool Lacks(uint32_t number, uint32_t crc);
  void OnNewLink();  // no list is known

 private:
  struct Slot {
    std::shared_ptr<const RowList> rows;  // nullptr: it is free
    size_t told = 0;                      // bytes
    bool known = false;
    uint32_t users = 0;
    uint64_t used = 0;  // when
  };

  Slot* Find(const RowList& rows);
  std::optional<uint32_t> Free();
  std::optional<uint32_t> Evict();
  uint32_t NumberOf(const Slot& slot) const { return static_cast<uint32_t>(&slot - slots_.data()); }

  const Limits limits_;
  std::vector<Slot> slots_;
  std::unordered_multimap<uint32_t, uint32_t> by_crc_;
  std::vector<uint32_t> free_;   // numbers
  std::vector<uint32_t> stale_;  // those of them under which the server has a list
  uint64_t bytes_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace byteps_like
