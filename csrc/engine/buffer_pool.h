// Memory for payloads on their way: taken and given back, never freed before the pool is.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "csrc/transport/memory/registered_memory.h"

namespace byteps_like {

struct PooledBuffer {
  std::byte* data = nullptr;  // aligned to 64 bytes; nullptr: none
  size_t bytes = 0;
};

// Thread-safe. The pool must outlive its buffers.
class BufferPool {
 public:
  BufferPool() = default;
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;

  PooledBuffer Take(size_t bytes);  // at least so long; its contents are undefined
  void Give(PooledBuffer& buffer);  // which is none then

  // The size of the buffer that is taken for this many bytes. There are few sizes, so tensors that are cut a little
  // differently share buffers.
  static size_t Rounded(size_t bytes);

 private:
  std::mutex mutex_;
  std::map<size_t, std::vector<std::byte*>> free_;  // by size
  std::vector<RegisteredMemory> registered_;        // all that there are, but small ones
};

}  // namespace byteps_like
