#include "server/memory.h"

#include <algorithm>
#include <bit>
#include <new>

namespace byteps_like {
namespace {

constexpr auto kAlignment = std::align_val_t(4096);

// Sizes that differ little become one, so that payloads of changing sizes find a buffer again.
size_t Rounded(size_t bytes) {
  const size_t step = std::max<size_t>(std::bit_floor(bytes) / 8, 64);
  return (bytes + step - 1) / step * step;
}

}  // namespace

void ShardBuffer::Release() {
  if (owner_ != nullptr) owner_->Give(data_, size_);
  owner_ = nullptr;
  data_ = nullptr;
  size_ = 0;
}

ShardBuffer ShardMemory::Take(size_t bytes) {
  ShardBuffer buffer;
  if (bytes == 0) return buffer;
  const size_t size = Rounded(bytes);
  const auto found = std::lower_bound(kept_.begin(), kept_.end(), size,
                                      [](const Kept& kept, size_t wanted) { return kept.size < wanted; });
  if (found != kept_.end() && found->size == size) {
    buffer.data_ = found->data;
    kept_.erase(found);
  } else {
    if (!Fits(size)) return buffer;
    buffer.data_ = static_cast<std::byte*>(::operator new[](size, kAlignment, std::nothrow));
    if (buffer.data_ == nullptr) return buffer;
    held_ += size;
    if (size >= kLeastRegistered) registered_.emplace(buffer.data_, RegisteredMemory(buffer.data_, size));
  }
  buffer.owner_ = this;
  buffer.size_ = size;
  return buffer;
}

void ShardMemory::Give(std::byte* data, size_t size) {
  const auto place = std::upper_bound(kept_.begin(), kept_.end(), size,
                                      [](size_t given, const Kept& kept) { return given < kept.size; });
  kept_.insert(place, {data, size});
}

bool ShardMemory::Charge(size_t bytes) {
  if (!Fits(bytes)) return false;
  charged_ += bytes;
  return true;
}

bool ShardMemory::Fits(size_t more) {
  const auto fits = [this, more] { return limit_ == 0 || held_ + charged_ + more <= limit_; };
  if (fits()) return true;
  Trim();
  return fits();
}

Status ShardMemory::Exhausted() const {
  const std::string most = limit_ == 0 ? "there is" : "its " + std::to_string(limit_) + " bytes";
  return Status(Code::kCapacity,
                owner_ + " needs more than " + most + " of memory: raise server_memory_limit or add servers");
}

void ShardMemory::Trim() {
  for (const Kept& kept : kept_) {
    held_ -= kept.size;
    registered_.erase(kept.data);  // before the memory goes
    ::operator delete[](kept.data, kAlignment);
  }
  kept_.clear();
}

}  // namespace byteps_like
