#include "csrc/gpu/peers/peers_page.h"

#include <atomic>
#include <string>

namespace byteps_like {
namespace {

constexpr size_t kLine = 64;  // bytes: of words that others write, none is in a cache line with another

constexpr size_t LineOf(uint32_t lane, uint32_t rank) { return (1 + size_t{lane}) * PeersPage::kMostRanks + rank; }
static_assert((LineOf(PeersPage::kLanes - 1, PeersPage::kMostRanks - 1) + 1) * kLine <= PeersPage::kBytes);

uint32_t Load(uint32_t* word) { return std::atomic_ref<uint32_t>(*word).load(std::memory_order_acquire); }
void Store(uint32_t* word, uint32_t value) { std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release); }

}  // namespace

Result<std::unique_ptr<PeersPage>> PeersPage::Create(std::shared_ptr<Gpu> gpu, std::shared_ptr<SharedBuffer> buffer) {
  if (buffer->size() < kBytes)
    return Status(Code::kInvalid, "a page of " + std::to_string(buffer->size()) + " bytes for the ranks of a host");
  auto page = PinnedMemory::Lock(std::move(gpu), std::move(buffer));
  if (!page.ok()) return page.status();
  auto begin = (*page)->DeviceAddressOf((*page)->data());
  if (!begin.ok()) return begin.status();
  return std::unique_ptr<PeersPage>(new PeersPage(std::move(*page), *begin));
}

uint32_t* PeersPage::At(size_t line) const { return reinterpret_cast<uint32_t*>(page_->data() + line * kLine); }

PeerState PeersPage::state(uint32_t rank) const { return static_cast<PeerState>(Load(At(rank))); }
void PeersPage::set_state(uint32_t rank, PeerState state) { Store(At(rank), static_cast<uint32_t>(state)); }

uint32_t PeersPage::step(uint32_t lane, uint32_t rank) const { return Load(At(LineOf(lane, rank))); }
void PeersPage::set_step(uint32_t lane, uint32_t rank, uint32_t step) { Store(At(LineOf(lane, rank)), step); }
cuda::DeviceAddress PeersPage::address(uint32_t lane, uint32_t rank) const {
  return begin_ + LineOf(lane, rank) * kLine;
}

}  // namespace byteps_like
