// A round of encoded contributions: each payload is put together from its segments, handed to the codec's Accumulate
// the moment it is whole, and dropped; with the last one Emit makes the result. All memory is borrowed for as long as
// it is needed: a payload's until it is summed, the accumulator until the result is there, that until all have it.
#pragma once

#include <vector>

#include "csrc/codec/codec.h"
#include "csrc/codec/payload.h"
#include "server/codecs.h"
#include "server/memory.h"
#include "server/round.h"

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

class EncodedRound final : public Round {
 public:
  // `memory` and `feedback` live longer.
  EncodedRound(uint64_t key, ShardMemory& memory, ServerFeedback& feedback)
      : key_(key), memory_(memory), feedback_(feedback) {}

  void Begin(const Header& first, const Terms& terms, uint32_t world_size) override;
  void Release() override;
  // Also kCorrupt: the rank has changed the length of its payload.
  Status Reserve(const Header& push) override;
  // nullptr if the segment does not go on where the last one ended.
  std::byte* Place(Link& link, const Header& push) override;
  Status Land(const Link& link, const Header& push, const std::byte* payload) override;
  Result<bool> Advance() override;
  const std::byte* result() const override { return result_.data(); }

 private:
  Status Add(uint32_t rank, Bytes payload);
  Status CheckHeader(uint32_t rank, const PayloadHeader& header) const;
  Status Open(uint32_t rank, uint32_t numel);
  Status Emit();

  const uint64_t key_;
  ShardMemory& memory_;
  ServerFeedback& feedback_;
  const ServerCodec* codec_ = nullptr;
  std::vector<ShardBuffer> payloads_;  // by rank; of none before it begins and once it is summed
  uint32_t numel_ = 0;                 // of the partition; 0 until the first payload is whole
  uint32_t summed_ = 0;                // payloads
  CodecPlan plan_;
  ShardBuffer sum_, result_;
};

}  // namespace byteps_like
