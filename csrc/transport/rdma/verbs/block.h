// Page-aligned zeroed memory of its own mapping, for registration: never shared with memory from the allocator.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace byteps_like::rdma {

class Block {
 public:
  Block() = default;
  explicit Block(size_t size) : size_(size) {
    void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data != MAP_FAILED) data_ = static_cast<std::byte*>(data);
  }
  Block(Block&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Block() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  std::byte* data() const { return data_; }  // nullptr: there was no memory
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace byteps_like::rdma
