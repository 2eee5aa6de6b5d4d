// Memory of this process that same-host servers may use in place. Others own it: what they let go of is forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/transport/memory/shared_buffer.h"

namespace byteps_like {

struct SharedRegion {
  std::shared_ptr<SharedBuffer> buffer;  // nullptr: there is none
  uint32_t id = 0;
};

// Any thread. It takes no other lock, and its owner may call it under any.
class RegionTable {
 public:
  uint32_t Add(const std::shared_ptr<SharedBuffer>& buffer);  // returns its id
  // The buffer that holds all of these bytes.
  SharedRegion Find(const std::byte* at, size_t bytes) const;
  // Forgets buffers that nobody owns any more, and returns their ids: servers may unmap them.
  std::vector<uint32_t> TakeGone();
  std::vector<std::shared_ptr<SharedBuffer>> buffers() const;

 private:
  struct Region {
    const std::byte* data;
    size_t size;
    uint32_t id;
    std::weak_ptr<SharedBuffer> buffer;
  };
  mutable std::mutex mutex_;
  std::vector<Region> regions_;
  uint32_t next_ = 0;
};

}  // namespace byteps_like
