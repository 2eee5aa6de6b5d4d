// A round of encoded contributions that are summed whole: each payload is handed to the codec's Accumulate the moment
// it has come, and dropped; with the last one Emit makes the result.
#pragma once

#include "server/payload_round.h"

namespace byteps_like {

// What the results of a key have left out so far, of a codec with `two_way`: it is added to the sum of the next round.
// (Double squeeze: Tang et al., ICML 2019.) Elements that are not finite leave nothing behind.
class ServerFeedback {
 public:
  // Adds what was left out to `sum`, and remembers the total. kCapacity.
  Status Begin(ShardMemory& memory, const ServerCodec& codec, std::span<float> sum);
  // `result`: what was made of that sum.
  void End(const ServerCodec& codec, const Draw& draw, std::byte* workspace, Bytes result);
  std::span<const float> residual() const { return {values(), numel_}; }

 private:
  float* values() const { return reinterpret_cast<float*>(buffer_.data()); }

  ShardBuffer buffer_;
  uint32_t numel_ = 0;                  // 0: nothing yet
  const ServerCodec* codec_ = nullptr;  // whose results left it out
};

class EncodedRound final : public PayloadRound {
 public:
  // `memory` and `feedback` live longer.
  EncodedRound(uint64_t key, ShardMemory& memory, ServerFeedback& feedback)
      : PayloadRound(memory), key_(key), feedback_(feedback) {}

  void Begin(const Header& first, const Terms& terms, uint32_t world_size) override;
  Result<bool> Advance() override;

 private:
  Status Grown(uint32_t rank) override;
  Status Emit();

  const uint64_t key_;
  ServerFeedback& feedback_;
  uint32_t summed_ = 0;  // payloads
};

}  // namespace byteps_like
