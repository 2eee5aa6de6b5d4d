// Bulk-synchronous rounds: no rank gets the result of a round before every rank has contributed to it (Valiant, CACM
// 1990).
#pragma once

#include "server/policy/policy.h"
#include "server/rounds/round.h"

namespace byteps_like {

class AllRanks : public Quorum {
 public:
  uint32_t Least(uint32_t world) const override { return world; }
};

// All ranks come, and the root brings the bytes.
class RootAmongAll final : public AllRanks {
 public:
  uint32_t Source(const Terms& terms) const override { return terms.root; }
};

}  // namespace byteps_like
