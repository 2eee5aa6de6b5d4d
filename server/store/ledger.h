// What a server knows of one store key beside its bytes: the version, what it has of each source, what waits. Each
// contribution is settled exactly once: it is part of one version, or late. A repeated one is recognized by its clock.
// Twin of byteps_like/store/ledger.py. Not thread-safe: a key belongs to one shard. Times are seconds of any one clock.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "server/store/gradient_estimate.h"
#include "server/store/policies/policy.h"

namespace byteps_like {

inline constexpr size_t kRounds = 20;  // policies look back on so many

struct SourceState {
  uint32_t number = 0;
  bool live = true;
  bool resting = false;     // not live, but it will go on where it was
  bool unfinished = false;  // it has pushed a block, and not the last one yet
  int64_t clock = 0;        // how many of its contributions are behind it: applied, or late
  int64_t base = -1;        // of its last; -1: none
  double lead = kAnyLead;
  double last = 0;      // when that came
  double interval = 0;  // since the one before; 0: there is none
};

// What the next version will be made of.
struct OpenVersion {
  double since = 0;               // when the last one was made
  std::vector<StorePush> pushes;  // in the order in which they came; of a source all are blocks, the last one behind
  std::vector<double> finished;   // when the last blocks came

  bool Has(uint32_t source) const;
  bool Has(uint32_t source, int64_t clock) const;
  bool HasLast(uint32_t source) const;  // its last block
};

// What came of one version, for whoever looks back.
struct StoreRound {
  double began = 0;           // when the version was made
  std::vector<double> times;  // seconds from then until last blocks came that were computed on it, also late ones
};

// A contribution is settled.
struct Settled {
  StorePush push;
  int64_t version = 0;  // that it is part of; 0: it is late
};

class Ledger {
 public:
  // Of sources 0 to `sources` - 1. The policy lives longer.
  Ledger(const StorePolicy& policy, uint32_t sources, double now);

  int64_t version() const { return version_; }
  int64_t least() const;  // contributions behind the slowest live source
  uint32_t live() const { return live_; }
  const OpenVersion& open() const { return open_; }
  std::optional<double> gap() const { return gap_; }  // seconds between two last blocks, on average of late
  bool Knows(uint32_t source) const { return Find(source) != nullptr; }  // it is live, or was
  const SourceState& source(uint32_t number) const { return *Find(number); }
  std::span<const SourceState> sources() const { return sources_; }  // by number
  // Of the newest versions, kRounds before the one in force, and of that, as far as there are so many since a policy
  // observes; the oldest first.
  const std::deque<StoreRound>& rounds() const { return rounds_; }
  // Of the newest versions of which that is known, kRounds at the most, the oldest first; not of the one in force.
  const std::deque<GradientEstimate>& estimates() const { return estimates_; }
  bool AwaitsNone() const;           // of each there is something here, or there was, and its last block is yet to come
  bool AllLiveHaveFinished() const;  // their last blocks are here
  // Live sources of which no block is here, nor in a version before, while the open one is about to be made without
  // them: they should send those that they have finished.
  std::vector<uint32_t> CutOff() const;
  int64_t Clock(uint32_t source) const;  // of its next push; what is before it is here

  // Each of these adds to `events` what it has brought about, in order.
  // A contribution has come, whole. kCorrupt if one before it is missing, or if it was computed on a version that there
  // is not yet.
  Status Push(const StorePush& push, double now, std::vector<Settled>* events);
  void PassTime(double now, std::vector<Settled>* events);
  void Lose(uint32_t source, double now, std::vector<Settled>* events);
  int64_t Join(uint32_t source);  // the clock of its first push
  // A version is made of no contribution. Who waits for its own to be part of one goes on waiting.
  void Amend();
  // What waits is late.
  void Drop(std::vector<Settled>* events);
  // The value was restored to that of `version`: what was computed on others, and when, is forgotten. Nothing waits.
  void Restore(int64_t version, double now);
  // It pushes nothing until it wakes: nobody waits for it meanwhile.
  void Rest(uint32_t source, double now, std::vector<Settled>* events);
  void Wake(uint32_t source);
  // From now on `policy`, which lives longer, decides, also on what is here.
  void Change(const StorePolicy& policy, double now, std::vector<Settled>* events);

  // Of a copy of another's ledger, which decides: of a source so many contributions are settled; so many versions were
  // made. Nothing waits.
  void Follow(uint32_t source, int64_t clock, bool unfinished);
  void Follow(int64_t version) { version_ = version; }

  // What the contributions that the newest version is made of tell of the gradient. Changes nothing before the next
  // one.
  void Observe(const GradientEstimate& estimate) { observed_ = estimate; }

  bool MayRead(uint32_t reader) const { return policy_->MayRead(*this, reader); }

 private:
  const SourceState* Find(uint32_t number) const;
  SourceState& At(uint32_t number) { return const_cast<SourceState&>(*Find(number)); }
  void Note(const StorePush& push, double now);
  void NoteLast(const StorePush& push, double now);
  void LookBack();
  bool Awaits(const SourceState& source) const;
  bool Waits(uint32_t source) const;
  void Offer(const StorePush& push, double now, std::vector<Settled>* events);
  void Make(double now, std::vector<Settled>* events);
  void Settle(const StorePush& push, int64_t version, std::vector<Settled>* events);

  const StorePolicy* policy_;
  int64_t version_ = 0;
  uint32_t live_ = 0;
  std::vector<SourceState> sources_;
  OpenVersion open_;
  std::vector<StorePush> held_;
  std::optional<double> gap_, newest_;
  std::deque<StoreRound> rounds_;
  std::deque<GradientEstimate> estimates_;
  std::optional<GradientEstimate> observed_;
};

}  // namespace byteps_like
