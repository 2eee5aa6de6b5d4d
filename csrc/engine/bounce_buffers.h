// Shared memory of the engine's own, by way of which tensors in private memory go to servers of this host and back: two
// copies of each byte, where a stream through shared memory takes four, and four checksums.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "csrc/engine/region_table.h"
#include "csrc/transport/memory/shared_buffer.h"

namespace byteps_like {

struct Bounce {
  std::shared_ptr<SharedBuffer> memory;  // nullptr: none
  std::byte* data = nullptr;             // aligned to 64 bytes
  size_t bytes = 0;
};

// The I/O thread's.
class BounceBuffers {
 public:
  // Half of `capacity` is the largest place there is. It should be no more than a part of the last-level cache.
  BounceBuffers(RegionTable& regions, size_t capacity) : regions_(regions), capacity_(capacity) {}

  // Whether it has places of so many bytes, now or later. The first time that it should, it makes the memory.
  bool Serves(size_t bytes);
  uint32_t region() const { return region_; }  // the number that its memory has, if it has some
  // None: others have to be given back first.
  Bounce Take(size_t bytes);
  void Give(Bounce& bounce);  // which is none then
  // The same, but a server may still write to it: nothing that shares memory with it is given out again.
  void Abandon(Bounce& bounce);

 private:
  struct Extent {
    size_t begin, end;
  };

  RegionTable& regions_;
  const size_t capacity_;
  std::shared_ptr<SharedBuffer> memory_;  // from the first need on
  uint32_t region_ = 0;
  std::vector<Extent> free_;      // of it, in order, none next to another
  size_t places_ = 0, used_ = 0;  // given out: how many, and their bytes
  bool refused_ = false;          // there was no memory for it
};

}  // namespace byteps_like
