// The copies of store keys, as one shard has to do with them: those that it keeps for the shards of other servers, and
// the successors of its own keys. docs/reference/protocol.md, "Copies of store keys", has the sequences. On the shard's
// thread.
//
// The chain of a key is: the server that workers use, then, as often as there are to be copies, the shard that would
// take the key over if all servers before it were gone (csrc/wire/adopter.h). So if the first of them dies, workers go
// to the second by themselves, which has it all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "csrc/transport/links/link.h"
#include "server/memory.h"
#include "server/store/chain/copied_key.h"
#include "server/store/chain/successor.h"

namespace byteps_like {

// A shard, as its copies see it. None of it blocks.
class CopyHost {
 public:
  virtual void KickCopies(uint32_t shard) = 0;                  // Copies::Next has a frame for that shard now
  virtual void ConfirmCopy(uint32_t shard, Header copied) = 0;  // a COPIED, to where the copy comes from
  virtual void FailCopy(uint64_t key, const Status& why) = 0;   // ends the job
  virtual double CopyTime() const = 0;                          // seconds of any one clock

 protected:
  ~CopyHost() = default;
};

class Copies {
 public:
  Copies(CopyHost& host, ShardMemory& memory) : host_(host), memory_(memory) {}

  // A world of so many ranks. `servers`: of each shard of the job, as workers number them, and which of these is this
  // one; empty: keys have no copies.
  void Reset(uint32_t ranks, std::vector<uint32_t> servers, uint32_t own);
  uint32_t own() const { return own_; }              // this shard,
  size_t shards() const { return servers_.size(); }  // of so many

  // Successors of keys. `whole`: all of it as it is now, given the servers that have it before the next one.
  using Whole = std::function<Result<CopyRecord>(const std::vector<uint32_t>& before)>;
  // A copy, or that it is made anew. `home`: see KeyTerms.
  void Begin(uint64_t key, uint32_t home, const Whole& whole);
  bool Has(uint64_t key) const;  // a successor: it is to hear of each change
  void Update(uint64_t key, CopyRecord update);
  void After(uint64_t key, uint32_t rank, std::function<void()> say);  // see Successor
  void Forget(uint64_t key);
  // The key is set aside: its next copy, too, whose shard this is; nullopt: there is none that counts.
  std::optional<uint32_t> SetAside(uint64_t key);
  // The same over all keys; and whether there is nothing to wait for.
  void AfterAll(uint32_t rank, std::function<void()> say);
  bool are_settled() const;
  std::vector<std::pair<uint64_t, Successor::Wait>> LongestWaits() const;

  // A server is gone, and the links to it are closed. The keys, other than copies, that need another successor.
  std::vector<uint64_t> Lose(uint32_t server);
  // Workers have come here with it, for the servers before this one are gone: the copy, which is none any more.
  // kPeerLost: there is none that is whole.
  Result<std::unique_ptr<CopiedKey>> Take(uint64_t key);
  static Status Missing();
  // The copies here that were set aside, which are none any more.
  std::unordered_map<uint64_t, std::unique_ptr<StoreKey>> TakeSetAside();
  bool Keeps(uint64_t key) const { return copies_.contains(key); }
  // Copies here whose servers before this one are gone, until they are taken; and those elsewhere that don't know yet
  // that their keys are no more.
  size_t loose() const;
  size_t kept() const { return held_; }                                   // copies that count, here
  bool HasCopy(uint64_t key) const { return replicated_.contains(key); }  // that counts, next in its chain
  size_t replicated() const { return replicated_.size(); }                // keys of this shard whose next copy does

  // From and to the links.
  bool Next(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep);
  void OnNewWay(uint32_t shard);
  void OnCopied(uint32_t shard, const Header& header);
  std::byte* PlaceFor(uint32_t shard, const Header& header);
  void OnCopy(uint32_t shard, const Header& header, const std::byte* payload);

 private:
  struct Kept {
    uint32_t from = 0;  // shard
    std::unique_ptr<CopiedKey> copy;
    bool counted = false;
  };

  std::optional<uint32_t> Next(uint32_t home, const std::vector<uint32_t>& before) const;
  void Begin(uint64_t key, uint32_t home, const std::vector<uint32_t>& before, const Whole& whole);
  void BeginBehind(uint64_t key, CopiedKey& copy);
  void Queue(uint64_t key, const Successor& successor);
  CopiedKey* Accept(uint32_t shard, const Header& header, const std::byte* payload);
  CopiedKey& Replace(uint64_t key, Kept by);
  Kept Remove(uint64_t key);
  void Watch(uint64_t key, const Successor& successor);
  void Discard(uint64_t key, Successor& successor);
  void EndCopy(uint32_t shard, const Header& header);
  void PassOn(uint64_t key, CopiedKey& copy);
  void Confirm(uint32_t shard, uint64_t key, uint32_t number);

  CopyHost& host_;
  ShardMemory& memory_;
  uint32_t ranks_ = 0;
  std::vector<uint32_t> servers_;  // by shard
  uint32_t own_ = 0;
  std::set<uint32_t> lost_;
  std::unordered_map<uint64_t, Successor> successors_;
  std::set<uint64_t> ending_;  // keys that are no more, of which their successors don't know
  std::unordered_map<uint64_t, Kept> copies_;
  std::vector<Kept> replaced_;  // by those from another shard; a link may still write to them
  std::unordered_map<uint32_t, std::deque<uint64_t>> turns_;  // by shard: keys with frames for it
  std::set<std::pair<uint32_t, uint64_t>> queued_;            // which are in one of these
  size_t held_ = 0;
  std::set<uint64_t> replicated_;
};

}  // namespace byteps_like
