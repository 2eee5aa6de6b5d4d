// A rank that waits for others at a shard, since when, and what for: an error's text.
#pragma once

#include <cstdint>
#include <string>

namespace byteps_like {

struct StoreWait {
  uint32_t rank = 0;
  double since = 0;
  std::string text;
};

}  // namespace byteps_like
