// A round of arrays: contributions come in as segments of a stream, or by reference in shared memory. Each is added as
// it comes, and ranges to which all ranks have contributed are finished at once (cut-through).
//
// The sum may be lent to one rank, the tenant in the following rounds: its link writes there unseen, after the part of
// its contribution that is counted. So contributions of others beyond that part are summed aside, and added when the
// tenant's have landed. If the tenant comes first, this saves a copy; if it comes last, it costs none, because bytes
// are copied aside instead of to the sum (docs/decisions/0033).
#pragma once

#include <vector>

#include "server/memory.h"
#include "server/rounds/round.h"

namespace byteps_like {

class DenseRound final : public Round {
 public:
  DenseRound(uint64_t /*key*/, ShardMemory& memory) : memory_(memory) {}  // which lives longer

  void Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) override;
  Status Reserve(const Header& push) override;
  // nullptr: someone else's bytes are being received there, the range is partly summed, the type is widened, or nothing
  // of this rank counts.
  std::byte* Place(Link& link, const Header& push) override;
  void Abandon(const Link& link) override;
  Link* InTheWay(const Link& link, const Header& push) const override;
  Status Land(const Link& link, const Header& push, const std::byte* payload) override;
  Result<bool> Advance() override;
  const std::byte* result() const override { return widened() ? result_.data() : sum(); }
  std::byte* Relayed() override { return const_cast<std::byte*>(result()); }
  void Answer(uint32_t until, bool movable) override;
  std::span<std::byte> Lendable() override;
  uint32_t came_first() const override { return first_; }
  void Lend(uint32_t rank) override;
  uint32_t lent_to() const override { return lent_to_; }

 private:
  struct Extent {  // bytes of the wire type that hold a rank's
    uint32_t begin = 0, end = 0;
  };

  std::byte* sum() const { return tenant_ == kNobody ? accumulator_.data() : lent_.data(); }
  void Count(uint32_t rank, uint32_t offset, const std::byte* payload, uint32_t length);
  void Add(std::byte* to, Extent& filled, uint32_t offset, const std::byte* payload, uint32_t length);
  void AddAside(uint32_t to);
  void CutShort(uint32_t rank) override;
  bool CountsPart(uint32_t /*rank*/) const override { return true; }
  uint32_t Ready() const;
  Status NobodyContributes() const;
  // Where a block ends that begins here: at a place from which on fewer contribute, at the latest.
  uint32_t BlockEnd(uint32_t from, uint32_t to) const;
  void Sum(uint32_t from, uint32_t to);
  void Finish(uint32_t from, uint32_t to);
  void Complete(uint32_t until);
  Status FinishWhole();
  void FinishReferences(uint32_t from, uint32_t to);
  void ReturnReferences(uint32_t from, uint32_t to);
  uint32_t Divisor(uint32_t from) const;  // of the block that begins here
  bool widened() const { return AccumulatorOf(work_) != work_; }
  size_t Widened(uint32_t bytes) const;  // offset in the accumulator of an offset in the wire type

  ShardMemory& memory_;
  DType work_ = DType::kFloat32;      // as summed: a broadcast moves bytes, whatever they mean
  Extent filled_;                     // of the sum
  Link* direct_ = nullptr;            // receives into the sum from its end on
  ShardBuffer accumulator_, result_;  // kept for the next round
  ShardBuffer lent_;                  // where the rank lent_to_ may write, whatever comes
  uint32_t lent_to_ = kNobody;
  uint32_t first_ = kNobody;   // whose bytes came first
  uint32_t tenant_ = kNobody;  // lent_to_, if this round is summed there: then only it writes beyond filled_
  ShardBuffer aside_;          // borrowed until the round is finished; `waiting_` is in it and not in the sum
  Extent waiting_;
  std::vector<uint32_t> cuts_;        // where contributions end of which no more comes
  std::vector<const void*> sources_;  // reused: nothing is allocated per round
  std::vector<void*> destinations_;
};

}  // namespace byteps_like
