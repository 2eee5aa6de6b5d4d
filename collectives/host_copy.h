// Copies of memory that is not read again soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace byteps_like {

// `total` is the size of all that the copy is a part of: what is larger than the caches goes around them.
inline void CopyBytes(std::byte* to, const std::byte* from, size_t bytes, [[maybe_unused]] uint64_t total) {
  std::memcpy(to, from, bytes);
}

}  // namespace byteps_like
