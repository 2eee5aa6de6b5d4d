#include "csrc/gpu/gate.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>

#include "csrc/base/log.h"

namespace byteps_like {
namespace {

constexpr size_t kPage = 64 << 10;  // bytes of words, of more gates than are ever closed at a time: locking may block

}  // namespace

GpuGate::~GpuGate() {
  Open();
  std::lock_guard lock(gates_->mutex_);
  gates_->free_.push_back(word_);
}

Result<bool> GpuGate::Block(cuda::Stream stream) const {
  if (is_open()) return true;
  const Gpu& gpu = *gates_->gpu_;
  if (!gpu.waits()) return false;
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  auto look = gates_->LookOf(stream);
  if (!look.ok()) return look.status();
  const cuda::Outcome outcome = gpu.api().StreamWaitValue(stream, word_.address, word_.value, cuda::kWaitGreaterEqual);
  if (outcome == cuda::kNotSupported) return false;
  const Status status = gpu.Check(outcome, "cuStreamWaitValue32");
  if (!status.ok()) return status;
  const Status recorded = (*look)->Record(stream);
  if (recorded.ok()) return true;
  gates_->unknown_ = true;
  return recorded;
}

void GpuGate::Open() { std::atomic_ref<uint32_t>(*word_.at).store(word_.value, std::memory_order_release); }

bool GpuGate::is_open() const {
  return std::atomic_ref<uint32_t>(*word_.at).load(std::memory_order_acquire) == word_.value;
}

Result<std::shared_ptr<GpuGates>> GpuGates::Create(std::shared_ptr<Gpu> gpu) {
  std::shared_ptr<GpuGates> gates(new GpuGates(std::move(gpu)));
  const Status status = gates->Grow();
  if (!status.ok()) return status;
  return gates;
}

GpuGates::~GpuGates() {
  bool looks = unknown_;
  for (const auto& [stream, look] : looks_) {
    auto done = look->Done();
    looks = looks || (done.ok() && !*done);
  }
  if (!looks) return;
  Log(LogLevel::kInfo, "GPU " + std::to_string(gpu_->info().ordinal) + ": " + std::to_string(pages_.size()) +
                           " pages of host memory stay locked: a stream has not come by what it was told to wait for");
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<PinnedMemory>>();
  std::lock_guard lock(mutex);
  std::ranges::move(pages_, std::back_inserter(*kept));
}

// An event of its own for each stream that ever waits.
Result<const GpuEvent*> GpuGates::LookOf(cuda::Stream stream) {
  std::lock_guard lock(looks_mutex_);
  const auto found = looks_.find(stream);
  if (found != looks_.end()) return found->second.get();
  auto event = GpuEvent::Create(gpu_);
  if (!event.ok()) return event.status();
  return looks_.emplace(stream, std::move(*event)).first->second.get();
}

Status GpuGates::Grow() {
  auto buffer = SharedBuffer::Create(kPage);
  if (!buffer.ok()) return buffer.status();
  auto page = PinnedMemory::Lock(gpu_, *buffer);
  if (!page.ok()) return page.status();
  auto address = (*page)->DeviceAddressOf((*page)->data());
  if (!address.ok()) return address.status();
  auto* const words = reinterpret_cast<uint32_t*>((*page)->data());
  std::lock_guard lock(mutex_);
  for (size_t i = kPage / sizeof(uint32_t); i-- > 0;) free_.push_back({words + i, *address + i * sizeof(uint32_t), 0});
  pages_.push_back(std::move(*page));
  return Status();
}

Result<std::unique_ptr<GpuGate>> GpuGates::Make() {
  std::unique_lock lock(mutex_);
  while (free_.empty()) {
    lock.unlock();
    const Status status = Grow();
    if (!status.ok()) return status;
    lock.lock();
  }
  GpuGate::Word word = free_.back();
  free_.pop_back();
  ++word.value;
  return std::unique_ptr<GpuGate>(new GpuGate(shared_from_this(), word));
}

}  // namespace byteps_like
