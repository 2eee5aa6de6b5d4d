// The memory of one shard: aligned, counted, within a limit. Buffers that are given back are kept for the next request
// of about the same size, so that repeating rounds allocate nothing. Belongs to one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/transport/memory/registered_memory.h"

namespace byteps_like {

class ShardMemory;

// Some of it, aligned to a page, not cleared; goes back when this dies. Its ShardMemory lives longer.
class ShardBuffer {
 public:
  ShardBuffer() = default;
  ShardBuffer(ShardBuffer&& other) noexcept { *this = std::move(other); }
  ShardBuffer& operator=(ShardBuffer&& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~ShardBuffer() { Release(); }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // as asked for, or more; 0: none
  void Release();

 private:
  friend class ShardMemory;
  ShardMemory* owner_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

class ShardMemory {
 public:
  // `owner`: for errors. `limit` in bytes, 0: none. `held`: bytes of all buffers, in use or kept; other threads may
  // read it.
  ShardMemory(std::string owner, uint64_t limit, std::atomic<uint64_t>& held)
      : owner_(std::move(owner)), limit_(limit), held_(held) {}
  ~ShardMemory() { Trim(); }
  ShardMemory(const ShardMemory&) = delete;
  ShardMemory& operator=(const ShardMemory&) = delete;

  // A buffer of `bytes`, or up to an eighth more; an empty one if that exceeds the limit or the system has no memory.
  ShardBuffer Take(size_t bytes);
  // Counts memory that is not in buffers; false if it would exceed the limit.
  bool Charge(size_t bytes);
  void Refund(size_t bytes) { charged_ -= bytes; }
  bool is_ample() const { return limit_ == 0 || held_ + charged_ <= limit_ / 2; }  // for uses that only save time
  void Trim();                                                                     // frees buffers that are kept
  Status Exhausted() const;  // kCapacity: the error where there was no memory

 private:
  friend class ShardBuffer;
  struct Kept {
    std::byte* data;
    size_t size;
  };
  bool Fits(size_t more);
  void Give(std::byte* data, size_t size);

  const std::string owner_;
  const uint64_t limit_;
  std::atomic<uint64_t>& held_;
  uint64_t charged_ = 0;
  std::vector<Kept> kept_;                             // by size, ascending
  std::map<std::byte*, RegisteredMemory> registered_;  // of all buffers but small ones
};

}  // namespace byteps_like
