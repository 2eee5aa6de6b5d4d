#include "collectives/host/host_layout.h"

#include <algorithm>

namespace byteps_like {
namespace {

constexpr size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Small enough that the staged pieces of all members together stay in the caches.
constexpr size_t kMostPiece = 256u << 10, kLeastPiece = 32u << 10, kAllPieces = 1u << 20;

}  // namespace

HostLayout::HostLayout(std::byte* base, uint32_t ranks, uint32_t groups) : base_(base), ranks_(ranks), groups_(groups) {
  piece_bytes_ = std::clamp(kAllPieces / std::max(ranks, 1u) / 4096 * 4096, kLeastPiece, kMostPiece);
  post_bytes_ = RoundUp(sizeof(HostPost) + ranks * sizeof(HostSection), 64);
  member_bytes_ = sizeof(HostMember) + kHostRing * post_bytes_;
  slot_bytes_ = RoundUp(sizeof(HostSlot) + ranks * member_bytes_, 4096);
  lanes_ = RoundUp(sizeof(HostHeader) + ranks * sizeof(HostCell), 4096);
  slots_ = RoundUp(lanes_ + groups * sizeof(uint64_t), 4096);
  stages_ = slots_ + groups * slot_bytes_;
}

HostCell& HostLayout::cell(uint32_t rank) const {
  return reinterpret_cast<HostCell*>(base_ + sizeof(HostHeader))[rank];
}

HostMember& HostLayout::member(uint32_t slot, uint32_t member) const {
  std::byte* first = base_ + slots_ + slot * slot_bytes_ + sizeof(HostSlot);
  return *reinterpret_cast<HostMember*>(first + member * member_bytes_);
}

HostPost& HostLayout::post(uint32_t slot, uint32_t member, uint64_t call) const {
  std::byte* first = reinterpret_cast<std::byte*>(&this->member(slot, member)) + sizeof(HostMember);
  return *reinterpret_cast<HostPost*>(first + call % kHostRing * post_bytes_);
}

std::byte* HostLayout::stage(uint32_t slot, uint32_t member) const {
  return base_ + stages_ + (static_cast<size_t>(slot) * ranks_ + member) * stage_bytes();
}

size_t HostAreaBytes(size_t ranks, uint32_t groups) {
  return HostLayout(nullptr, static_cast<uint32_t>(ranks), groups).bytes();
}

uint32_t HostGroupsIn(size_t bytes, size_t ranks) {
  uint32_t groups = kMostHostGroups;
  while (groups > 0 && HostAreaBytes(ranks, groups) > bytes) groups /= 2;
  return groups;
}

Result<std::shared_ptr<SharedBuffer>> MakeHostArea(size_t ranks) {
  for (uint32_t groups = kMostHostGroups;; groups /= 2) {
    auto area = SharedBuffer::CreateSparse(HostAreaBytes(ranks, groups));
    if (area.ok() || area.status().code() != Code::kCapacity || groups <= kLeastHostGroups) return area;
  }
}

}  // namespace byteps_like
