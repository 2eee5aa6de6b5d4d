// One round of one key: contributions come in (as segments of a stream, or by reference in shared memory), ranges that
// everybody has contributed to are finished at once (cut-through), results are read from here.
//
// Exactly once: what of a rank's contribution has been counted is a prefix, `counted`; bytes below it are ignored when
// they come again. Not thread-safe: a round belongs to one shard. Sizes are bytes of the wire type unless named
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/transport/stream.h"
#include "csrc/wire/frame.h"

namespace byteps_like {

class Link;

// Cache-line aligned memory that is counted against the server's budget by its owner.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  void Allocate(size_t bytes);  // keeps what is there if it is large enough
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(4096)); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t size_ = 0;
};

struct Contribution {
  bool begun = false;              // the rank takes part in this round (its first frame has come)
  uint32_t counted = 0;            // prefix of its bytes that is in the sum
  std::byte* reference = nullptr;  // where all of it lies, and its result goes, in shared memory
  bool acknowledged = false;       // the rank has moved on to the next round: it has its result
  bool queued = false;             // in its link's queue of results to send
  uint32_t sent = 0;               // prefix of the result handed to its link
  int64_t answered = 0;            // TraceClock when the first of it was; 0 while nobody records
};

class Round {
 public:
  // Starts a round for `world_size` ranks with what the first frame says (dtype, op, root, total).
  void Begin(const Header& first, uint32_t world_size);
  void Release();  // all ranks have their result; memory is kept for the next round

  bool active() const { return active_; }
  bool finished() const { return complete_ == total_ && begun_ == ranks_.size(); }
  uint32_t number() const { return number_; }
  uint32_t total() const { return total_; }
  uint32_t complete() const { return complete_; }
  int32_t priority() const { return priority_; }
  uint32_t segment() const { return segment_; }  // the longest of a contribution so far; 0: none came as a stream
  Contribution& of(uint32_t rank) { return ranks_[rank]; }
  std::span<const Contribution> ranks() const { return ranks_; }
  bool Has(uint32_t rank) const { return ranks_[rank].begun && ranks_[rank].counted == total_; }  // all of its part
  const std::byte* result() const { return AccumulatorOf(work_) == work_ ? accumulator_.data() : result_.data(); }
  size_t NeededMemory() const;  // for a round to which some contributions come as streams
  void Reserve();
  size_t memory() const { return accumulator_.size() + result_.size(); }
  Deadline last_progress() const { return last_progress_; }
  int64_t began = 0;  // TraceClock at Begin; 0 while nobody records

  Header Describe() const;  // number, dtype, op, root, total, priority: what all its frames have in common
  // True the first time this is called with so many warnings since the last progress.
  bool WarnOnce(uint32_t warnings);

  // "" if this frame agrees with the round, else what differs, with both sides.
  std::string Disagreement(const Header& header) const;

  // Memory for the next segment of `rank`, or nullptr if it must go through scratch: someone else's bytes are being
  // received there, the range is partly summed, the type is widened, or nothing of this rank counts. `link` is
  // remembered until Landed or Abandon.
  std::byte* PlaceDirect(Link& link, const Header& header);
  void Abandon(const Link& link);  // the link died or was redirected

  // The link that receives into a range which this whole segment, come through scratch, is the first to fill; the
  // caller redirects it to its own scratch and abandons it. Else nullptr.
  Link* InTheWay(const Link& link, const Header& header) const;

  // A segment has come whole, at `payload` (in place, or in scratch). Counts it, once.
  void Landed(const Link& link, const Header& header, const std::byte* payload);
  void Refer(uint32_t rank, std::byte* memory);  // the whole contribution, by reference
  void Subscribe(uint32_t rank);                 // begins; contributes nothing (broadcast, not the root)
  // What the frame says beside its payload. Results tell all ranks the same: none goes out before all have begun.
  void Note(const Header& header) { movable_ = movable_ && (header.flags & kMovable) != 0; }
  bool movable() const { return movable_; }
  bool delivered() const;  // it is over, and its whole result has been handed to the link of every rank

  // Finishes every byte that all ranks have contributed to; true if there is more result than before.
  bool Advance();

  std::string WaitingFor() const;  // "waiting for rank 1, 3; have rank 0, 2"

 private:
  void Count(uint32_t offset, const std::byte* payload, uint32_t length);
  void MarkBegun(Contribution& contribution);
  void Touch();
  uint32_t Ready() const;
  void Finish(uint32_t from, uint32_t to);
  void FinishReferences(uint32_t from, uint32_t to);
  size_t Widened(uint32_t bytes) const;  // offset in the accumulator of an offset in the wire type

  bool active_ = false;
  uint32_t number_ = 0, total_ = 0, root_ = 0;
  uint32_t opened_by_ = 0;         // the rank whose frame began it
  DType dtype_ = DType::kFloat32;  // as declared
  DType work_ = DType::kFloat32;   // as summed: a broadcast moves bytes, whatever they mean
  Op op_ = Op::kSum;
  int32_t priority_ = 0;
  bool movable_ = false;  // all that have begun know where the tensor goes after this round
  uint32_t segment_ = 0;
  uint32_t begun_ = 0, references_ = 0;
  uint32_t accumulated_ = 0;  // prefix of the accumulator that holds somebody's bytes
  uint32_t complete_ = 0;     // prefix that is finished
  Link* direct_ = nullptr;    // receives into the accumulator from accumulated_ on
  Deadline last_progress_{};
  uint32_t warnings_ = 0;
  AlignedBuffer accumulator_, result_;
  std::vector<Contribution> ranks_;
  std::vector<const void*> sources_;  // reused: nothing is allocated per round
  std::vector<void*> destinations_;
};

std::string DescribeHeader(const Header& header);  // "average of 4096 bytes of float32"

}  // namespace byteps_like
