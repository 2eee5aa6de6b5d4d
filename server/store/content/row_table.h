// Records of one size by u64 id: an open-addressing hash from ids to slots, and slots in chunks of memory that never
// move. The hash has the ids, so that a look-up touches no record, and all that a record has lies together: what is
// done with random rows costs a cache line of the hash, and the lines of the records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/memory.h"

namespace byteps_like {

class RowTable {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // Records are of so many bytes, rounded up to 8. The memory lives longer.
  RowTable(size_t record_bytes, ShardMemory& memory);

  // The slot of each id; kNone, where there is no record.
  void Find(std::span<const uint64_t> ids, uint32_t* slots) const;
  // The same, but what isn't there is made, as a copy of `record`, of record_bytes(). kCapacity: some may have been
  // made.
  Status FindOrMake(std::span<const uint64_t> ids, const std::byte* record, uint32_t* slots);

  std::byte* At(uint32_t slot) const {
    return chunks_[slot >> chunk_shift_].data() + (slot & chunk_mask_) * record_bytes_;
  }
  // Its first `bytes` will be read, or written, soon.
  void Prefetch(uint32_t slot, size_t bytes) const {
    const std::byte* const from = At(slot);
    for (size_t at = 0; at < bytes && at < kMostPrefetched; at += kLine) __builtin_prefetch(from + at, 1);
    if (bytes != 0 && bytes <= kMostPrefetched) __builtin_prefetch(from + bytes - 1, 1);
  }

  size_t size() const { return count_; }
  size_t record_bytes() const { return record_bytes_; }
  // visit(id, slot) for all, in any order.
  template <typename Visit>
  void VisitAll(const Visit& visit) const {
    for (size_t i = 0; i < capacity(); ++i)
      if (places()[i].slot != kNone) visit(places()[i].id, places()[i].slot);
  }

  // The same, from a place on, as long as that says true. The place to go on from; 0: there is none.
  template <typename Visit>
  size_t VisitFrom(size_t place, const Visit& visit) const {
    for (; place < capacity(); ++place) {
      if (places()[place].slot == kNone) continue;
      if (!visit(places()[place].id, places()[place].slot)) return place;
    }
    return 0;
  }

 private:
  static constexpr size_t kLine = 64, kMostPrefetched = 1024;
  struct Place {
    uint64_t id = 0;
    uint32_t slot = kNone;
    uint32_t unused = 0;
  };

  Place* places() const { return reinterpret_cast<Place*>(hash_.data()); }
  size_t capacity() const { return hash_.size() == 0 ? 0 : size_t{1} << hash_bits_; }
  Place& PlaceOf(uint64_t id) const;
  size_t HomeOf(uint64_t id) const;
  Status Grow();
  Status AddChunk();

  ShardMemory& memory_;
  const size_t record_bytes_;
  const uint32_t chunk_shift_, chunk_mask_;
  uint32_t hash_bits_ = 0;
  uint32_t count_ = 0;
  ShardBuffer hash_;  // places, more than there are records
  std::vector<ShardBuffer> chunks_;
};

}  // namespace byteps_like
