// Memory of exactly a size, for what a sanitizer is to watch.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace byteps_like::testing {

// Aligned to 64 bytes, and not a byte longer than it says: what is beyond is the sanitizer's.
class ExactBuffer {
 public:
  explicit ExactBuffer(size_t size) : size_(size) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, size == 0 ? 1 : size) != 0) std::abort();
    memory_.reset(static_cast<std::byte*>(memory));
  }
  std::byte* data() { return memory_.get(); }
  std::span<std::byte> bytes() { return {memory_.get(), size_}; }
  std::span<float> floats() { return {reinterpret_cast<float*>(memory_.get()), size_ / sizeof(float)}; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  size_t size_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace byteps_like::testing
