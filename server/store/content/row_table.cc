#include "server/store/content/row_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

constexpr size_t kChunkBytes = 256u << 10;
constexpr uint32_t kFirstBits = 6;
constexpr size_t kLookUpsAhead = 16;  // look-ups under way

// Of chunks as near to kChunkBytes as a power of two of records comes.
uint32_t ChunkShift(size_t record_bytes) {
  return static_cast<uint32_t>(std::bit_width(std::max<size_t>(1, kChunkBytes / record_bytes)) - 1);
}

// All bits of the id reach the highest ones, which the hash goes by.
uint64_t Mixed(uint64_t id) {
  id = (id ^ (id >> 32)) * 0xD6E8FEB86659FD93u;
  id = (id ^ (id >> 32)) * 0xD6E8FEB86659FD93u;
  return id ^ (id >> 32);
}

// Half of what a look-up in a large hash waits for is the table of pages. It is no harm if the system has none.
void UseHugePages(std::byte* data, size_t bytes) {
  constexpr uintptr_t kHuge = 2u << 20;
  const auto begin = reinterpret_cast<uintptr_t>(data), first = (begin + kHuge - 1) / kHuge * kHuge;
  const uintptr_t last = (begin + bytes) / kHuge * kHuge;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace

RowTable::RowTable(size_t record_bytes, ShardMemory& memory)
    : memory_(memory),
      record_bytes_(std::max<size_t>(8, (record_bytes + 7) / 8 * 8)),
      chunk_shift_(ChunkShift(record_bytes_)),
      chunk_mask_((1u << chunk_shift_) - 1) {}

size_t RowTable::HomeOf(uint64_t id) const { return Mixed(id) >> (64 - hash_bits_); }

// Where it is, or would be. There is always a free place.
RowTable::Place& RowTable::PlaceOf(uint64_t id) const {
  const size_t mask = capacity() - 1;
  size_t at = HomeOf(id);
  while (places()[at].slot != kNone && places()[at].id != id) at = (at + 1) & mask;
  return places()[at];
}

void RowTable::Find(std::span<const uint64_t> ids, uint32_t* slots) const {
  if (count_ == 0) {
    std::fill_n(slots, ids.size(), kNone);
    return;
  }
  for (size_t i = 0; i < std::min(kLookUpsAhead, ids.size()); ++i) __builtin_prefetch(&places()[HomeOf(ids[i])]);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kLookUpsAhead < ids.size()) __builtin_prefetch(&places()[HomeOf(ids[i + kLookUpsAhead])]);
    slots[i] = PlaceOf(ids[i]).slot;
  }
}

Status RowTable::FindOrMake(std::span<const uint64_t> ids, const std::byte* record, uint32_t* slots) {
  Find(ids, slots);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (slots[i] != kNone) continue;
    if (4 * (size_t{count_} + 1) > 3 * capacity())
      if (Status status = Grow(); !status.ok()) return status;
    if (count_ >> chunk_shift_ == chunks_.size())
      if (Status status = AddChunk(); !status.ok()) return status;
    PlaceOf(ids[i]) = {ids[i], count_, 0};
    std::memcpy(At(count_), record, record_bytes_);
    slots[i] = count_++;
  }
  return {};
}

// A place's home is by the highest bits, so that the old places, in order, fill the new ones nearly in order.
Status RowTable::Grow() {
  const uint32_t bits = hash_.size() == 0 ? kFirstBits : hash_bits_ + 1;
  ShardBuffer larger = memory_.Take(sizeof(Place) << bits);
  if (larger.size() == 0) return memory_.Exhausted();
  UseHugePages(larger.data(), sizeof(Place) << bits);
  std::fill_n(reinterpret_cast<Place*>(larger.data()), size_t{1} << bits, Place{});
  const size_t before = capacity();
  std::swap(hash_, larger);
  hash_bits_ = bits;
  const auto* const old = reinterpret_cast<const Place*>(larger.data());
  for (size_t i = 0; i < before; ++i)
    if (old[i].slot != kNone) PlaceOf(old[i].id) = old[i];
  return {};
}

Status RowTable::AddChunk() {
  if (kNone - count_ <= chunk_mask_ + 1)
    return Status(Code::kCapacity, "a shard has " + std::to_string(count_) +
                                       " rows of a table, which is as many as it can have: add servers");
  ShardBuffer chunk = memory_.Take(record_bytes_ << chunk_shift_);
  if (chunk.size() == 0) return memory_.Exhausted();
  chunks_.push_back(std::move(chunk));
  return {};
}

}  // namespace byteps_like
