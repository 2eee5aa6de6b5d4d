// The plan of chaos for one direction of one connection: at which bytes faults happen, and how fast it may send.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "csrc/transport/chaos/chaos.h"

namespace byteps_like {

// Positions of one kind of fault: gaps are exponential, so each byte is as likely as any other.
class FaultPositions {
 public:
  FaultPositions(uint64_t seed, double per_kib);
  uint64_t next() const { return next_; }
  void Advance();  // to the one after next()

 private:
  uint64_t Random();

  const uint64_t seed_;
  const double mean_gap_;
  uint64_t counter_ = 0;
  uint64_t next_ = std::numeric_limits<uint64_t>::max();
};

class ChaosPlan {
 public:
  ChaosPlan(const ChaosOptions& options, uint64_t seed);

  // How many of `wanted` bytes may move now, up to the next fault. 0: nothing before wake_at().
  size_t Allow(size_t wanted, Deadline now);
  std::optional<Deadline> wake_at() const { return wake_at_; }  // set by the last Allow that gave 0

  bool drops() const { return position_ >= drop_.next(); }        // the connection breaks here
  bool corrupts() const { return position_ == corrupt_.next(); }  // the next byte is to be flipped
  std::byte Flip(std::byte byte);                                 // once for that byte, when it moves
  void Moved(size_t bytes);

 private:
  bool Stalled(Deadline now);
  size_t Credit(size_t wanted, Deadline now);

  const double rate_;
  const double burst_;
  const std::chrono::nanoseconds stall_for_;
  FaultPositions drop_, corrupt_, stall_;
  uint64_t position_ = 0;
  Deadline stalled_until_{};
  double credit_;
  Deadline credited_at_;
  std::optional<Deadline> wake_at_;
};

}  // namespace byteps_like
