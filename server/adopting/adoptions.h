// Keys of servers that are gone, as far as the ranks have brought them to this shard. It waits for the word of all: how
// many rounds of the key each has the results of. They differ by one at most, since no result goes out before all ranks
// have begun its round, for which they need the one before.
//
// Where all have the same, the key goes on with the next round. Else those that lack the newest result get it from a
// rank that has it, by way of this shard, or, where only absent ranks are beyond it, sum it anew. On the shard's
// thread; pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/wire/frame.h"

namespace byteps_like {

// A shard, as its adoptions see it. None of it blocks.
class AdoptionHost {
 public:
  virtual void Answer(uint32_t rank, Header header,
                      std::string payload = {}) = 0;                // a frame for its link, if it has one
  virtual void Refuse(uint32_t rank, const std::string& what) = 0;  // it has broken the protocol
  virtual void FailAdoption(uint64_t key, const Status& why) = 0;   // ends the job
  virtual bool IsHere(uint32_t rank) const = 0;                     // has neither left nor died

 protected:
  ~AdoptionHost() = default;
};

class Adoptions {
 public:
  explicit Adoptions(AdoptionHost& host) : host_(host) {}

  void Reset(uint32_t ranks);

  // Frames, and what becomes of ranks. A rank has left or died; it is there by a new link.
  void OnAdopt(uint32_t rank, const Header& header);
  void OnTake(uint32_t rank, const Header& header);
  void OnGive(uint32_t rank, const Header& header, const std::byte* payload);
  void OnContributors(uint32_t rank, const Header& header);
  void OnGone(uint32_t rank);
  void Forget(uint64_t key) { adoptions_.erase(key); }  // it is over
  size_t size() const { return adoptions_.size(); }
  bool Knows(uint64_t key) const { return adoptions_.contains(key); }
  void OnBack(uint32_t rank);

  // The round with which the key begins here: 0 unless it was adopted. nullopt: ranks have yet to be heard.
  std::optional<uint32_t> FirstRound(uint64_t key) const;
  // `round` of the key has begun. The ranks that are beyond it, which bring nothing to it and want nothing of it.
  std::vector<uint32_t> Begun(uint64_t key, uint32_t round);

  // What ranks wait for the longest, if anybody does, since when, and who.
  struct Wait {
    uint64_t key = 0;
    Deadline since{};
    std::string text;
    std::vector<uint32_t> waiting;
  };
  std::optional<Wait> LongestWait() const;

 private:
  struct Word {
    bool said = false, holds = false, waits = false, absent = false;
    uint32_t next = 0;  // round
  };
  struct Adoption {
    std::vector<Word> words;  // by rank
    Deadline since{};         // that somebody waits
    bool settled = false;
    uint32_t from = 0, newest = 0;  // rounds: with which the key goes on, and the latest `next`
    bool sums_anew = false;         // the round that some have the result of, but can't give it
    bool answers_late = false;      // those ranks are answered when it has begun
  };
  struct Taking {
    uint32_t giver = 0, round = 0;
    uint64_t at = 0;  // bytes that were passed on
  };

  void SettleIfHeard(uint64_t key, Adoption& adoption);
  void Settle(uint64_t key, Adoption& adoption);
  void Tell(uint64_t key, const Adoption& adoption, uint32_t rank);
  std::optional<uint32_t> Holder(const Adoption& adoption) const;
  void FailAsLost(uint64_t key, uint32_t round);
  void AskGiver(uint64_t key, uint32_t taker, Taking& taking);

  AdoptionHost& host_;
  uint32_t ranks_ = 0;
  std::map<uint64_t, Adoption> adoptions_;
  std::map<std::pair<uint64_t, uint32_t>, Taking> takings_;  // by key and rank
};

}  // namespace byteps_like
