// The base of rounds with encoded contributions: it assembles each payload from its segments, over as many links as it
// takes, and checks its header. The kinds differ in how they sum payloads: encoded_round.h when they are complete,
// merge_round.h while they arrive. All memory is borrowed for as long as it is needed: a payload's until it is summed,
// the accumulator's until the result is complete, and the result's until all ranks have it.
#pragma once

#include <vector>

#include "csrc/codec/codec.h"
#include "csrc/codec/payload.h"
#include "server/codecs.h"
#include "server/memory.h"
#include "server/rounds/round.h"

namespace byteps_like {

class PayloadRound : public Round {
 public:
  explicit PayloadRound(ShardMemory& memory) : memory_(memory) {}  // which lives longer

  void Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) override;
  void Release() override;
  // Also kCorrupt: the rank has changed the length of its payload.
  Status Reserve(const Header& push) final;
  // nullptr if the segment does not go on where the last one ended.
  std::byte* Place(Link& link, const Header& push) final;
  Status Land(const Link& link, const Header& push, const std::byte* payload) final;
  const std::byte* result() const final { return result_.data(); }

 protected:
  // More of the rank's payload has arrived.
  virtual Status Grown(uint32_t rank) = 0;

  Bytes Come(uint32_t rank) const { return {payloads_[rank].data(), ranks_[rank].counted}; }  // of its payload
  Bytes ZerosFrom(uint32_t rank, uint32_t offset);  // all of its payload, of which no more comes
  void Drop(uint32_t rank) { payloads_[rank].Release(); }
  void CutShort(uint32_t rank) override;
  // Looks at the header of a payload that begins like this; the first to come opens the sum. kCorrupt, kMismatch,
  // kCapacity.
  Status CheckHeader(uint32_t rank, Bytes payload);
  Status TakeResult(uint32_t bytes);  // memory for it, until Release. kCapacity.
  // The same for so many bytes behind its header, which it writes.
  Status OpenResult(uint32_t bytes, uint32_t count);
  std::byte* ResultBody() const { return result_.data() + kPayloadHeader; }
  static Status Nonsense(uint32_t rank, const std::string& why);  // kCorrupt

  ShardMemory& memory_;
  const ServerCodec* codec_ = nullptr;
  uint32_t numel_ = 0;  // of the partition; 0 until a header has been seen
  CodecPlan plan_;
  ShardBuffer sum_;

 private:
  Status Open(uint32_t rank, uint32_t numel);

  std::vector<ShardBuffer> payloads_;  // by rank; of none before it begins and once it is summed
  uint32_t opener_ = 0;                // whose header said how many elements there are
  ShardBuffer result_;
};

}  // namespace byteps_like
