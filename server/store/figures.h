// What the store keys of a shard count, for people: of each key and rank, what became of its contributions, and how
// long it has waited for what. Only the shard's thread counts; any thread may read, and takes a lock that counting does
// not.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/wire/note.h"

namespace byteps_like {

// What a rank waits for at a store key. Known to byteps_like/server/figures.py and timeline/merge.py.
enum class Awaited : uint8_t {
  kValue = 0,    // the first value, which another rank is to set
  kReading = 1,  // to read a version that the policy lets it have
  kVersion = 2,  // its contribution: for others, of which a version is made with it
  kPolicy = 3,   // that all ranks have asked for another policy
};
inline constexpr size_t kAwaitedCount = 4;

inline constexpr uint32_t kNoRank = 0xFFFFFFFF;

// Plain numbers, of one rank.
struct RankTotals {
  uint64_t clock = 0;  // contributions of which it is settled what became of them
  uint64_t counted = 0, late = 0, not_finite = 0;
  uint64_t held = 0;  // that had to wait for another version than the next; each is also one of the above in the end
  uint64_t ages = 0, oldest = 0;                // of those that counted, in versions: their sum, and the greatest
  std::array<double, kAwaitedCount> waited{};   // seconds, by Awaited, of waits that are over
  std::array<double, kAwaitedCount> awaited{};  // seconds that others have waited, until it did something
};

// Of a tensor, whose keys are those of one id: contributions are added up, the clock is the least of its keys, the
// age and the seconds are the most of any key. A rank that waits for all keys at once has waited that long.
struct TensorTotals {
  uint32_t tensor = 0;
  uint32_t keys = 0;
  std::vector<RankTotals> ranks;
};

// Of one key. On the shard's thread, but for Read.
class KeyFigures {
 public:
  explicit KeyFigures(uint32_t ranks) : ranks_(ranks) {}

  // A contribution of that rank is settled.
  void Settle(uint32_t rank, Applied how, uint64_t age);
  void Hold(uint32_t rank);
  // `rank` has waited until `whom` did something; kNoRank: until a time had come.
  void Wait(uint32_t rank, Awaited what, double seconds, uint32_t whom);

  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  RankTotals Read(uint32_t rank) const;
  static size_t Bytes(uint32_t ranks) { return ranks * sizeof(Rank); }

 private:
  // One thread writes, so adding needs no atomic addition.
  class Count {
   public:
    void Add(uint64_t more) { value_.store(get() + more, std::memory_order_relaxed); }
    void Raise(uint64_t to) {
      if (get() < to) value_.store(to, std::memory_order_relaxed);
    }
    uint64_t get() const { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<uint64_t> value_{0};
  };
  struct Rank {
    Count counted, late, not_finite, held, ages, oldest;
    std::array<Count, kAwaitedCount> waited, awaited;  // nanoseconds
  };

  std::vector<Rank> ranks_;
};

// Of all keys of a shard.
class StoreFigures {
 public:
  KeyFigures& Open(uint64_t key, uint32_t ranks);  // at zero; as long as the key is there
  void Close(uint64_t key);
  void Clear();

  std::vector<TensorTotals> Read() const;  // by tensor id, ascending

 private:
  mutable std::mutex mutex_;  // of which keys there are
  std::map<uint64_t, KeyFigures> keys_;
};

}  // namespace byteps_like
