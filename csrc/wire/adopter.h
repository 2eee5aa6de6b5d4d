// Which shard takes over what a server had that is gone: that with the highest draw of those that are left. All workers
// and servers find the same without asking anybody, each other shard gets as much, and where something goes doesn't
// depend on which others are gone. Sums go key by key. Values that servers keep go by the shard where they were at
// first, so that what lies together stays so.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps_like {

// `shard`: among those of all servers, as workers number them.
inline uint64_t DrawOf(uint64_t what, size_t shard) {
  uint64_t mixed = what * 0x9E3779B97F4A7C15 + (shard + 1) * 0xD1B54A32D192ED03;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

}  // namespace byteps_like
