// One round of one key, and the bookkeeping that all kinds of rounds share: which seats have begun, how much of each
// contribution is counted, how much of the result was sent to each, and which have acknowledged it. The kind of round
// turns contributions into a result: dense_round.h adds arrays while they arrive, encoded_round.h sums a codec's
// payloads when they are complete, merge_round.h while they arrive. The policy (server/policy/policy.h) decides how
// many contributions a result needs, what is done with it and which ranks may read it.
//
// Where a rank is spoken of, it is one that contributes for itself, or the seat of an aggregator (seats.h). On a shard
// of an aggregator rounds are relayed: a sum is not the result yet, but goes on to the server that owns the key, whose
// result takes its place (server/relay/relay.h).
//
// Each byte counts exactly once: the counted part of a rank's contribution is a prefix, `counted`, and bytes below it
// are ignored when they arrive again. Not thread-safe: a round belongs to one shard. Sizes are bytes on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/transport/stream.h"
#include "csrc/wire/frame.h"
#include "server/policy/policy.h"
#include "server/rounds/seats.h"

namespace byteps_like {

class Link;
struct ServerCodec;

// The properties that all contributions to a round share. Encoded ones differ in length, so their `total` is 0.
struct Terms {
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  uint32_t root = 0;  // of a broadcast
  uint32_t total = 0;
  const ServerCodec* codec = nullptr;  // of an encoded round
  bool operator==(const Terms&) const = default;
};
Terms TermsOf(const Header& push, const ServerCodec* codec);
std::string Describe(const Terms& terms);  // "average of 4096 bytes of float32", "sum encoded by onebit:block=1024"

struct Contribution {
  bool begun = false;                    // the rank takes part in this round (its first frame has come)
  bool referred = false;                 // all of it lies in shared memory, and its result goes there
  bool absent = false;                   // brings nothing, and gets nothing but word that the round is over
  bool gone = false;                     // no more comes from the rank, and it gets nothing
  bool acknowledged = false;             // the rank has moved on to the next round: it has its result
  bool queued = false;                   // in its link's queue of results to send
  uint32_t total = 0;                    // bytes of it, since it has begun
  uint32_t counted = 0;                  // prefix of its bytes that has been counted
  uint32_t codec = 0;                    // how its link calls the codec
  uint32_t under_way = 0;                // frames that its link may still read from the result
  uint32_t sent = 0;                     // prefix of the result handed to its link
  uint64_t connection = 0;               // that the rank has said it by: nothing goes out by another
  int64_t answered = 0;                  // TraceClock when the first of the result was; 0 while not recording
  std::shared_ptr<std::byte> reference;  // where it lies if it is referred, until the round is finished

  bool at_once() const { return referred || absent; }  // pushed, and answered, by one frame
};

class Round {
 public:
  Round() = default;
  virtual ~Round() = default;
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  // Starts a round with the values of the first frame. `seats` live longer.
  virtual void Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats);
  virtual void Release() { active_ = false; }  // all ranks have their result

  bool active() const { return active_; }
  bool finished() const { return total_ != 0 && complete_ == total_; }
  const Terms& terms() const { return terms_; }
  uint32_t number() const { return number_; }
  uint32_t total() const { return total_; }        // of the result; 0 while unknown
  uint32_t complete() const { return complete_; }  // prefix of it that is complete
  uint32_t Readable(uint32_t rank) const;          // prefix of it that may be sent to a rank that has begun
  uint32_t least() const { return least_; }        // contributions that a result needs
  int32_t priority() const { return priority_; }
  uint32_t segment() const { return segment_; }  // the longest of a contribution so far; 0: none came as a stream
  Contribution& of(uint32_t rank) { return ranks_[rank]; }
  std::span<const Contribution> ranks() const { return ranks_; }
  bool Has(uint32_t rank) const { return ranks_[rank].begun && ranks_[rank].counted == ranks_[rank].total; }  // all
  // Bytes, and not only a subscription.
  bool Brings(uint32_t rank) const { return source_ == kNobody || seats_->SpeaksFor(rank, source_); }
  // The seat by which a rank takes part in this round, or a seat that does for some ranks of another: kNobody if none.
  uint32_t SeatOf(uint32_t rank) const;
  uint32_t RivalOf(uint32_t seat) const;
  Deadline last_progress() const { return last_progress_; }
  int64_t began = 0;  // TraceClock at Begin; 0 while not recording

  Header Describe() const;  // number, dtype, op, root, total, priority, flags: the fields that all its results share
  // True the first time this is called with so many warnings since the last progress.
  bool WarnOnce(uint32_t warnings);
  // "" if this push agrees with the round, else the difference, with both sides.
  std::string Disagreement(const Header& push, const Terms& terms) const;
  std::string WaitingFor() const;  // "waiting for rank 1, 3; have rank 0, 2"

  // Contributions without bytes of their own here.
  void Refer(uint32_t rank, std::shared_ptr<std::byte> memory);  // the whole contribution, by reference
  void Subscribe(uint32_t rank);                                 // begins; contributes nothing (it doesn't bring any)
  void Excuse(uint32_t rank);                      // begins; contributes nothing, wants nothing, isn't averaged over
  void Lack(uint32_t ranks) { absent_ += ranks; }  // so many of those that an aggregator speaks for are absent
  // The rank is gone. What has been counted of it stays in the sum; the rest is not waited for, nor averaged over. Of
  // what it has shared only what is summed already counts: the memory may be in other use from here on. True: all
  // others have acknowledged the round. Only if it CanDoWithout.
  virtual bool LeaveOut(uint32_t rank);
  // The bytes of its contribution that are in the result, or will be if no more of it comes.
  uint32_t Brought(uint32_t rank) const;
  // It has all that only this rank brings.
  bool CanDoWithout(uint32_t rank) const {
    return source_ != rank || finished() || (Has(rank) && !ranks_[rank].referred);
  }
  // The rank has moved on to the next round: it has its result. True: so have all.
  bool Acknowledge(uint32_t rank);
  // Takes note of a push's header. Results must tell all ranks the same, so none is sent before all ranks have begun.
  void Note(const Header& push);
  bool movable() const { return movable_; }

  // Memory for this push: before Place and Land. kCapacity.
  virtual Status Reserve(const Header& push) = 0;
  // Memory for the next segment of a contribution, or nullptr if it must go through scratch. `link` is remembered
  // until Land or Abandon.
  virtual std::byte* Place(Link& link, const Header& push) = 0;
  virtual void Abandon(const Link& link);  // the link died or was redirected
  // The link that receives into a range which this whole segment, come through scratch, is the first to fill; the
  // caller redirects it to its own scratch and abandons it. Else nullptr.
  virtual Link* InTheWay(const Link& link, const Header& push) const;
  // A segment has come whole, at `payload` (in place, or in scratch). Counts it, once. kCorrupt and kMismatch name the
  // rank.
  virtual Status Land(const Link& link, const Header& push, const std::byte* payload) = 0;
  // Finishes as much of the result as possible; true if it has grown. kCapacity.
  virtual Result<bool> Advance() = 0;
  virtual const std::byte* result() const = 0;

  // Of a round that is relayed: how much of its sum is there, and where; its result replaces it, as far as is said
  // here.
  uint32_t summed() const { return summed_; }
  uint32_t absent() const { return absent_; }  // ranks that bring nothing
  bool has_present() const { return absent_ < seats_->counting(); }
  bool BringsAny() const;  // whether some rank here brings bytes
  virtual std::byte* Relayed() { return nullptr; }
  virtual void Answer(uint32_t /*until*/, bool movable) { movable_ = movable; }

  // Of a finished round: the memory into which one rank's link may write its contributions to later rounds like this
  // one by itself (Link::Offer), until it is lent to another; empty if that is not possible. The rank whose bytes came
  // first, and the rank to which it is lent: kNobody if there is none.
  virtual std::span<std::byte> Lendable() { return {}; }
  virtual uint32_t came_first() const { return kNobody; }
  virtual void Lend(uint32_t /*rank*/) {}
  virtual uint32_t lent_to() const { return kNobody; }

 protected:
  void MarkBegun(Contribution& contribution, uint32_t total);
  // No more comes of a contribution that has begun. By default none of it counts.
  virtual void CutShort(uint32_t rank);
  virtual bool CountsPart(uint32_t /*rank*/) const { return false; }  // of a contribution that isn't whole
  void LetGoOfReferences();                                           // the round is finished
  void Touch();  // progress: more bytes than before; repeated ones don't count

  uint32_t total_ = 0, complete_ = 0;
  uint32_t summed_ = 0;  // prefix of the sum that all contributions are in
  bool relayed_ = false;
  uint32_t least_ = 0;
  uint32_t begun_ = 0, absent_ = 0;                            // ranks that were spoken for
  uint32_t contributions_ = 0, at_once_ = 0, references_ = 0;  // of them, so many
  const Seats* seats_ = nullptr;
  Update* update_ = nullptr;         // to be applied to the sum, if there is one
  std::vector<Contribution> ranks_;  // by seat

 private:
  std::vector<uint32_t> Missing() const;
  bool active_ = false;
  uint32_t number_ = 0;
  Terms terms_;
  uint32_t opened_by_ = 0;  // the rank whose frame began it
  uint32_t source_ = kNobody;
  uint32_t acknowledged_ = 0;  // ranks whose seats have
  const ReadRule* read_ = nullptr;
  int32_t priority_ = 0;
  bool movable_ = false;  // all that have begun know where the tensor goes after this round
  uint32_t segment_ = 0;
  Deadline last_progress_{};
  uint32_t warnings_ = 0;
};

inline uint32_t Round::Readable(uint32_t rank) const {
  if (ranks_[rank].at_once()) return finished() ? total_ : 0;
  return read_ == nullptr ? complete_ : read_->Readable(*this, rank);
}

}  // namespace byteps_like
