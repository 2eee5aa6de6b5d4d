// Random numbers that a seed decides, on every machine alike: xoshiro256** (Blackman and Vigna, 2018), seeded by
// splitmix64 (Steele, Lea and Flood, 2014).
#pragma once

#include <bit>
#include <cstdint>

namespace byteps_like::sim {

class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = SplitMix(seed);
  }

  uint64_t Next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // From 0 to before `below`, which is not 0. Uneven by less than below / 2^64.
  uint64_t Below(uint64_t below) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * below) >> 64);
  }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool OneIn(uint64_t times) { return Below(times) == 0; }

 private:
  static uint64_t SplitMix(uint64_t& state) {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  uint64_t state_[4];
};

}  // namespace byteps_like::sim
