// A round of arrays: contributions come in as segments of a stream, or by reference in shared memory; each is added as
// it comes, and ranges that everybody has contributed to are finished at once (cut-through).
#pragma once

#include <vector>

#include "server/memory.h"
#include "server/round.h"

namespace byteps_like {

class DenseRound final : public Round {
 public:
  explicit DenseRound(ShardMemory& memory) : memory_(memory) {}  // which lives longer

  void Begin(const Header& first, const Terms& terms, uint32_t world_size) override;
  Status Reserve(const Header& push) override;
  // nullptr: someone else's bytes are being received there, the range is partly summed, the type is widened, or nothing
  // of this rank counts.
  std::byte* Place(Link& link, const Header& push) override;
  void Abandon(const Link& link) override;
  Link* InTheWay(const Link& link, const Header& push) const override;
  Status Land(const Link& link, const Header& push, const std::byte* payload) override;
  Result<bool> Advance() override;
  const std::byte* result() const override { return widened() ? result_.data() : accumulator_.data(); }

 private:
  void Count(uint32_t offset, const std::byte* payload, uint32_t length);
  uint32_t Ready() const;
  void Finish(uint32_t from, uint32_t to);
  void FinishReferences(uint32_t from, uint32_t to);
  bool IsSource(uint32_t rank) const { return terms().op != Op::kBroadcast || rank == terms().root; }
  uint32_t Divisor() const;
  bool widened() const { return AccumulatorOf(work_) != work_; }
  size_t Widened(uint32_t bytes) const;  // offset in the accumulator of an offset in the wire type

  ShardMemory& memory_;
  DType work_ = DType::kFloat32;      // as summed: a broadcast moves bytes, whatever they mean
  uint32_t accumulated_ = 0;          // prefix of the accumulator that holds somebody's bytes
  Link* direct_ = nullptr;            // receives into the accumulator from accumulated_ on
  ShardBuffer accumulator_, result_;  // kept for the next round
  std::vector<const void*> sources_;  // reused: nothing is allocated per round
  std::vector<void*> destinations_;
};

}  // namespace byteps_like
