// Who contributes to the rounds of a shard, one seat each: every rank of the world for itself and, behind them, every
// shard of an aggregator for all ranks of its rack. A contribution counts for the ranks that it speaks for, and a
// result needs all ranks that count here: those of the world, or on a shard of an aggregator those of its rack.
//
// Fixed while an epoch lasts; belongs to one shard.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace byteps_like {

class Seats {
 public:
  Seats() = default;
  explicit Seats(uint32_t ranks);                                                   // of the world, all of which count
  Seats(uint32_t ranks, const std::vector<uint32_t>& those_of_rack);                // which count alone
  void AddAggregator(const std::string& rack, const std::vector<uint32_t>& ranks);  // one shard of it

  uint32_t size() const { return static_cast<uint32_t>(seats_.size()); }
  uint32_t ranks() const { return ranks_; }        // of the world: they have the first seats
  uint32_t counting() const { return counting_; }  // of those
  uint32_t weight(uint32_t seat) const { return static_cast<uint32_t>(seats_[seat].ranks.size()); }  // 0: not here
  bool is_aggregator(uint32_t seat) const { return seat >= ranks_; }
  bool SpeaksFor(uint32_t seat, uint32_t rank) const;
  // The ranks that a seat speaks for, and the seats that may speak for a rank, its own first.
  std::span<const uint32_t> RanksOf(uint32_t seat) const { return seats_[seat].ranks; }
  std::span<const uint32_t> Of(uint32_t rank) const { return of_[rank]; }
  // Other seats that speak for some of the same ranks.
  std::span<const uint32_t> Beside(uint32_t seat) const { return seats_[seat].beside; }

  std::string Name(uint32_t seat) const;                        // "rank 3", "rack b (ranks 4, 5)"
  std::string Names(const std::vector<uint32_t>& seats) const;  // "ranks 0, 2 and rack b (ranks 4, 5)"

 private:
  struct Seat {
    std::string rack;  // of an aggregator
    std::vector<uint32_t> ranks, beside;
  };
  uint32_t ranks_ = 0, counting_ = 0;
  std::vector<Seat> seats_;
  std::vector<std::vector<uint32_t>> of_;  // by rank
};

std::string JoinRanks(std::span<const uint32_t> ranks);  // "rank 3", "ranks 0, 2"

}  // namespace byteps_like
