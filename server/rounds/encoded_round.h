// A round of encoded contributions that are summed whole: each payload is handed to the codec's Accumulate the moment
// it has come, and dropped; with the last one that the quorum needs Emit makes the result. Payloads that come later are
// dropped.
#pragma once

#include "server/rounds/payload_round.h"

namespace byteps_like {

class EncodedRound final : public PayloadRound {
 public:
  EncodedRound(uint64_t key, ShardMemory& memory) : PayloadRound(memory), key_(key) {}  // memory: lives longer

  void Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) override;
  Result<bool> Advance() override;

 private:
  Status Grown(uint32_t rank) override;
  Status Emit();

  const uint64_t key_;
  uint32_t summed_ = 0;  // payloads
};

}  // namespace byteps_like
