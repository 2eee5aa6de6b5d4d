// Sends and receives between two ranks of a group, over the exchange: matched by (group, sender, tag) in the order in
// which they were posted, never queued behind collectives. Any thread; nothing blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/completion.h"
#include "collectives/exchange/exchange.h"

namespace byteps_like {

struct PointOptions {
  uint64_t lane = 0;            // of the group
  std::vector<uint32_t> ranks;  // of the group: group rank -> world rank
  uint32_t tag = 0;
  double timeout = 1800;
  TrafficClass traffic = TrafficClass::kPointToPoint;
  int32_t priority = 0;
};

class PointToPoint {
 public:
  static constexpr int32_t kAnySource = -1;

  virtual ~PointToPoint() = default;
  virtual std::shared_ptr<Completion> Send(PointOptions options, uint32_t peer, const std::byte* data,
                                           uint64_t bytes) = 0;
  // `peer` is a group rank or kAnySource. A message of another length is a kMismatch on both ends.
  virtual std::shared_ptr<Completion> Receive(PointOptions options, int32_t peer, std::byte* place, uint64_t bytes) = 0;
};

}  // namespace byteps_like
