// A round whose payloads are an index and values (csrc/codec/merge.h), answered while they arrive. When the indexes of
// all ranks are in, the index of the result and its length are known. Values go out as soon as no rank has anything
// left to add to them. Each rank's units are added when they are complete.
//
// OmniReduce's terms (Fei et al., SIGCOMM 2021) and ours: a stream, or column: a partition; a slot: a segment under the
// worker's credit; a fused message: a segment, of many blocks; the table of next blocks: the cursors, read off the
// indexes, which all came first.
#pragma once

#include <vector>

#include "csrc/codec/merge.h"
#include "server/rounds/payload_round.h"

namespace byteps_like {

class MergeRound final : public PayloadRound {
 public:
  MergeRound(uint64_t /*key*/, ShardMemory& memory) : PayloadRound(memory) {}

  void Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) override;
  bool LeaveOut(uint32_t rank) override;
  Result<bool> Advance() override;

 private:
  void CutShort(uint32_t rank) override;
  bool CountsPart(uint32_t rank) const override { return cursors_[rank].bytes > 0; }
  Status Grown(uint32_t rank) override;
  Result<bool> Join(uint32_t rank);
  Status OpenSum();
  const MergeCodec& codec() const { return static_cast<const MergeCodec&>(*codec_->codec); }

  std::vector<MergeCursor> cursors_;  // in each rank's payload, behind its header
  uint32_t joined_ = 0;               // ranks whose index is in the sum's
  MergeCursor emitted_;               // in the result, behind its header
};

}  // namespace byteps_like
