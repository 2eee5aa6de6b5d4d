// Copies between tensors and memory shared with other ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps_like {

// Not memcpy: that takes the processor's string instructions for such sizes, which on some processors fall to a tenth
// where both addresses lie alike in their pages, as those of staged pieces and tensors do.
void CopyBytes(std::byte* to, const std::byte* from, size_t bytes);

// The same around the caches: for bytes that this core does not read again soon, and for memory that another core has
// read, whose lines would have to be fetched from there one by one before they are overwritten (measured: ten times
// slower).
void CopyAround(std::byte* to, const std::byte* from, size_t bytes);

// Copies part of a result of `total` bytes to its place; results larger than the caches go around them.
inline void CopyOut(std::byte* to, const std::byte* from, size_t bytes, size_t total) {
  constexpr size_t kCached = size_t{8} << 20;
  if (total >= kCached) {
    CopyAround(to, from, bytes);
  } else {
    CopyBytes(to, from, bytes);
  }
}

}  // namespace byteps_like
