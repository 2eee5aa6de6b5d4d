#include "csrc/transport/rdma/verbs/memory_keys.h"

#include "csrc/base/log.h"

namespace byteps_like::rdma {

Registrations& Registrations::Of(const Device& device) {
  static std::mutex mutex;
  static auto* const all = new std::map<const Device*, Registrations*>();
  std::lock_guard lock(mutex);
  Registrations*& found = (*all)[&device];
  if (found == nullptr) found = new Registrations(device);
  return *found;
}

bool Registrations::Find(const MemoryRegion& region, KeyPair* keys) {
  std::lock_guard lock(mutex_);
  auto found = by_id_.find(region.id);
  if (found == by_id_.end()) {
    auto made = device_.Register(region, verbs::kLocalWrite | verbs::kRemoteWrite);
    if (!made.ok()) {
      const char* const instead = region.dma_buf < 0 ? "payloads are copied instead of being sent in place"
                                                     : "payloads of the GPU go by their mirror in host memory";
      Log(LogLevel::kWarning, std::string("rdma: ") + instead + ": " + made.status().message());
    }
    found = by_id_.emplace(region.id, made.ok() ? std::move(*made) : nullptr).first;
  }
  if (found->second == nullptr) return false;
  *keys = {found->second->lkey, found->second->rkey};
  return true;
}

void Registrations::OnMemoryGone(uint64_t id) {
  std::lock_guard lock(mutex_);
  by_id_.erase(id);
}

MemoryKeys::MemoryKeys(const std::vector<const Device*>& devices) {
  for (const Device* device : devices) devices_.push_back(&Registrations::Of(*device));
}

PlaceKeys MemoryKeys::Find(const std::byte* data, size_t bytes) {
  if (const uint64_t now = MemoryGeneration(); now != generation_) {
    known_ = {};
    generation_ = now;
  }
  for (const Known& known : known_) {
    if (known.begin <= data && data + bytes <= known.end) return {&known.keys, known.foreign};
  }
  const auto region = FindMemory(data, bytes);
  if (!region) return {};
  Known found{region->data, region->data + region->bytes, region->dma_buf >= 0, {}};
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (!devices_[i]->Find(*region, &found.keys[i])) return {nullptr, found.foreign};
  }
  Known& place = known_[oldest_++ % known_.size()];
  place = found;
  return {&place.keys, place.foreign};
}

}  // namespace byteps_like::rdma
