#include "csrc/engine/keeping/row_numbers.h"

#include <algorithm>

#include "csrc/wire/frame.h"

namespace byteps_like {
namespace {

constexpr size_t kIdBytes = sizeof(uint64_t);

}  // namespace

std::optional<uint32_t> RowNumbers::Hold(const std::shared_ptr<const RowList>& rows) {
  Slot* slot = Find(*rows);
  if (slot == nullptr) {
    const auto number = Free();
    if (!number) return std::nullopt;
    slot = &slots_[*number];
    slot->rows = rows;
    bytes_ += rows->bytes();
    by_crc_.emplace(rows->crc, *number);
  }
  ++slot->users;
  slot->used = ++uses_;
  while (bytes_ > limits_.bytes && Evict()) {
  }
  return NumberOf(*slot);
}

RowNumbers::Slot* RowNumbers::Find(const RowList& rows) {
  for (auto [at, end] = by_crc_.equal_range(rows.crc); at != end; ++at) {
    Slot& slot = slots_[at->second];
    if (slot.rows.get() == &rows || *slot.rows == rows) return &slot;
  }
  return nullptr;
}

// A number that nobody has.
std::optional<uint32_t> RowNumbers::Free() {
  if (free_.empty() && slots_.size() < limits_.numbers) {
    slots_.emplace_back();
    return static_cast<uint32_t>(slots_.size() - 1);
  }
  if (free_.empty() && !Evict()) return std::nullopt;
  const uint32_t number = free_.back();
  free_.pop_back();
  std::erase(stale_, number);
  return number;
}

// Frees the number of the list that was used longest ago.
std::optional<uint32_t> RowNumbers::Evict() {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_)
    if (slot.rows && slot.users == 0 && (oldest == nullptr || slot.used < oldest->used)) oldest = &slot;
  if (oldest == nullptr) return std::nullopt;
  const uint32_t number = NumberOf(*oldest);
  auto [at, end] = by_crc_.equal_range(oldest->rows->crc);
  by_crc_.erase(std::find_if(at, end, [&](const auto& one) { return one.second == number; }));
  bytes_ -= oldest->rows->bytes();
  if (oldest->told != 0) stale_.push_back(number);
  free_.push_back(number);
  *oldest = {};
  return number;
}

void RowNumbers::Release(uint32_t number) { --slots_[number].users; }

// First a server is told of lists that it need not keep: theirs are empty ones from now on.
void RowNumbers::Announce(uint32_t number, size_t segment, Outgoing& next) {
  next.header.type = FrameType::kKeys;
  if (!stale_.empty()) {
    next.header.aux = stale_.back();
    return stale_.pop_back();
  }
  Slot& slot = slots_[number];
  next.header.aux = number;
  next.header.root = slot.rows->crc;
  next.header.total = static_cast<uint32_t>(slot.rows->bytes());
  next.header.offset = slot.told;
  const size_t most = std::max(segment / kIdBytes, size_t{1}) * kIdBytes;
  next.header.length = static_cast<uint32_t>(std::min(most, slot.rows->bytes() - slot.told));
  next.payload = reinterpret_cast<const std::byte*>(slot.rows->ids.data()) + slot.told;
  slot.told += next.header.length;
  slot.known = slot.told == slot.rows->bytes();
}

bool RowNumbers::Lacks(uint32_t number, uint32_t crc) {
  if (number >= slots_.size() || !slots_[number].rows || slots_[number].rows->crc != crc) return false;
  slots_[number].told = 0;
  slots_[number].known = false;
  return true;
}

void RowNumbers::OnNewLink() {
  stale_.clear();
  for (Slot& slot : slots_) {
    slot.told = 0;
    slot.known = false;
  }
}

}  // namespace byteps_like
