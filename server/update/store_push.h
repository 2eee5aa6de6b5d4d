// A contribution to a store key, as policies, ways of combining and functions see it.
#pragma once

#include <cstdint>
#include <limits>

namespace byteps_like {

struct StorePush {
  uint32_t source = 0;  // member number
  int64_t clock = 0;    // how many the source has made before it
  int64_t base = 0;     // the version that it was computed on
  double weight = 1;
  float loss = std::numeric_limits<float>::quiet_NaN();  // of its source's step; NaN: not told
  uint32_t bytes = 0;                                    // that it brings, for its answer
  bool idle = false;                                     // it brings nothing: its source goes on to its next clock
  bool last = true;       // all of what its source has set out to bring, or the last block of it
  uint32_t function = 0;  // of the key's, from 1, instead of its update
};

}  // namespace byteps_like
