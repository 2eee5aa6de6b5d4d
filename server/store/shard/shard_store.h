// The store keys of one shard, and what its workers want of them: contributions on their way in, readers that wait, and
// values on their way out. docs/reference/protocol.md, "Store keys", has the sequences. On the shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csrc/base/trace.h"
#include "csrc/transport/links/link.h"
#include "csrc/wire/frame.h"
#include "server/memory.h"
#include "server/store/calls/shard_calls.h"
#include "server/store/chain/copies.h"
#include "server/store/fetch.h"
#include "server/store/figures.h"
#include "server/store/saving/set_aside.h"
#include "server/store/saving/shard_asks.h"
#include "server/store/saving/shard_saving.h"
#include "server/store/store_key.h"
#include "server/store/wait.h"

namespace byteps_like {

// A shard, as its store sees it. Ranks are those of its world. None of it blocks.
class StoreHost {
 public:
  virtual void Answer(uint32_t rank, Header header, std::string payload = {}) = 0;  // a small frame, for its link
  virtual void OnValues(uint32_t rank) = 0;                                         // NextValue has one now
  virtual void Refuse(uint32_t rank, const std::string& what) = 0;                  // it has broken the protocol
  virtual void FailStore(const Status& why) = 0;                                    // ends the job
  virtual double Now() const = 0;                                                   // seconds of any one clock
  virtual void CallStoreAt(double time) = 0;                                        // ShardStore::PassTime, then
  virtual void Record(TraceRecord record) = 0;                                      // of this server, for the timeline
  virtual void KickWayTo(uint32_t shard) = 0;                   // there is a frame for it now: see NextForShard
  virtual void ConfirmCopy(uint32_t shard, Header copied) = 0;  // a COPIED for that shard
  virtual void EndWaysTo(uint32_t server) = 0;                  // nothing comes from there any more, nor goes there

 protected:
  ~StoreHost() = default;
};

class ShardStore : private CalledKeys, private SavedKeys, private CopyHost {
 public:
  ShardStore(StoreHost& host, ShardMemory& memory);
  virtual ~ShardStore();

  // A world of so many. `servers`: see Copies.
  struct World {
    uint32_t ranks = 0;
    uint32_t epoch = 0;
    std::vector<uint32_t> servers = {};
    uint32_t own = 0;
  };
  void Reset(World world);  // forgets everything but what was set aside
  bool Holds(uint64_t key) const { return !keys_.empty() && keys_.contains(key); }
  bool empty() const { return keys_.empty(); }
  const StoreFigures& figures() const { return figures_; }  // which any thread may read

  // Frames of a rank's link that DecodeHeader has accepted; but for a SPEC, a CALL, a CUT or a STATE, of a key that it
  // holds.
  void OnSpec(uint32_t rank, const Header& header, std::string_view text);
  std::byte* PlaceFor(uint32_t rank, const Header& header);  // of a PUSH's or ROWS' payload; nullptr: anywhere
  void OnPush(uint32_t rank, const Header& header, const std::byte* payload);
  void OnKeys(uint32_t rank, const Header& header, const std::byte* payload);
  void OnRows(uint32_t rank, const Header& header, const std::byte* payload);
  void OnClock(uint32_t rank, const Header& header, const std::byte* payload);
  void OnPull(uint32_t rank, const Header& header);
  void OnFetch(uint32_t rank, const Header& header, const std::byte* payload);
  void OnResume(uint32_t rank, const Header& header);
  void OnForget(uint32_t rank, const Header& header);
  void OnCall(uint32_t rank, const Header& header, const std::byte* payload);
  void OnSaving(uint32_t rank, const Header& header, const std::byte* payload);  // a CUT or a STATE

  // The priority of the next segment for that rank; nullopt: there is none.
  std::optional<int32_t> NextPriority(uint32_t rank) const;
  void NextValue(uint32_t rank, size_t segment, Outgoing& next);  // which there is
  void OnValueSent(uint32_t rank);
  void OnLinkGone(uint32_t rank);
  void OnLeft(uint32_t rank);  // it will contribute no more, and read no more
  void OnServerGone(uint32_t server);
  // This server is to leave: from here on another one is to have a copy of each key, too, whatever its spec says.
  // Begins some of those that there aren't, so that `most` bytes are on their way at once, more each time that it is
  // called. How many keys with a value, copies that workers will come for, restorations under way, and keys that were
  // set aside in the world before nobody else has yet.
  size_t HandOver(uint64_t most);
  Copies& copies() { return copies_; }  // for the links of the chains,
  ShardAsks& asks() { return asks_; }   // as these
  // The next frame for that shard of another server, and what keeps its payload; false: there is none.
  bool NextForShard(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep);
  // What another shard has asked this one for.
  Result<std::string> AnswerShard(std::span<const std::byte> asked) { return aside_.Answer(asked); }
  void PassTime();

  // A rank that waits for others: for a first value, for one that it may not read yet, for what its contribution will
  // be part of, for another policy, or for a cut.
  bool HasWaiting() const;
  std::vector<StoreWait> Waits() const;  // of each rank the longest, and that for a cut

 private:
  struct Spec;
  struct Reader;
  struct Opener;
  struct Arrival;
  struct Pending;
  struct Sending;
  struct FilteredValue;
  struct Entry;
  struct Rank;

  const Spec* SpecOf(uint32_t rank, const Header& header, std::string_view text);
  const Spec* Announced(uint32_t rank, const Header& header, std::string_view text);
  Entry* FindOrMake(uint32_t rank, const Header& header, const Spec& spec);
  Entry* Add(std::unique_ptr<Entry> entry);
  bool Agrees(const Entry& entry, uint32_t rank, const Header& header, const Spec& spec);
  void Open(Entry& entry, uint32_t rank);
  void Answer(const Entry& entry, uint32_t rank, Opened how);
  void Propose(Entry& entry, uint32_t rank, const Spec& spec);
  std::vector<uint32_t> MissingFor(const Entry& entry) const;
  bool ChangeIfAgreed(Entry& entry, uint32_t by);
  bool BeginAsZeros(Entry& entry);
  bool Begin(Entry& entry, Result<std::unique_ptr<StoreKey>> key);
  Result<std::unique_ptr<StoreKey>> KeyOf(const Entry& entry, ShardBuffer value);
  ShardBuffer Take(const Entry& entry, size_t bytes);
  bool HasCome(const Entry& entry, uint32_t rank, const Header& header) const;
  bool Knows(Entry& entry, uint32_t rank, const Header& header);
  void Nack(const Header& header, uint32_t rank, Nacked what);
  Arrival* ArrivalOf(Entry& entry, uint32_t rank, const Header& header);
  bool BeginArrival(const Entry& entry, Arrival& arrival, const Header& header);
  void Land(Entry& entry, uint32_t rank, const Header& header, const std::byte* payload);
  void Finish(Entry& entry, uint32_t rank, Arrival arrival);
  void Contribute(Entry& entry, uint32_t rank, Arrival arrival);
  bool Decode(const Entry& entry, uint32_t rank, Arrival& arrival);
  void Repeat(Entry& entry, uint32_t rank, const Header& header, const std::byte* payload);
  bool Done(Entry& entry, const Status& status, uint32_t by = kNoRank);
  void Count(Entry& entry, const PushAnswer& answer, uint32_t by);
  void HasWaited(const Entry& entry, uint32_t rank, Awaited what, double since, uint32_t whom);
  void Say(uint64_t key, const PushAnswer& answer);
  void Serve(Entry& entry, uint32_t by = kNoRank);
  bool HasOwn(const Entry& entry, const Reader& reader) const;
  bool MayHave(const Entry& entry, const Reader& reader) const;
  static bool MayBeLong(const Entry& entry, uint32_t total);
  bool Send(Entry& entry, const Reader& reader);
  std::shared_ptr<const ShardBuffer> Value(Entry& entry, const Reader& reader, Header& header);
  std::shared_ptr<const ShardBuffer> Fetched(const Entry& entry, const Reader& reader, Header& header);
  void Refuse(uint32_t rank, uint64_t key, const std::string& what);
  void TimeHeld(Entry& entry);
  void CutOff(Entry& entry);
  void SayCutOff(const Entry& entry, uint32_t rank);
  void FreeIfForgotten(uint64_t key);
  void KeepForNext();
  bool IsWhereItIs(uint32_t rank, const Header& header);
  bool TakeOver(uint32_t rank, const Header& header);
  bool LoseThoseWhoLeft(Entry& entry);
  uint32_t ReplicasOf(const Entry& entry) const;
  static uint64_t BytesOf(const Entry& entry);
  void CopyWhole(Entry& entry);
  void CopyChanges(Entry& entry);
  KeyTerms TermsOf(const Entry& entry) const;
  template <typename Then>
  void SayCopied(const Entry& entry, uint32_t rank, Then then);
  std::function<void()> OnThisLink(uint32_t rank, std::function<void()> say) const;
  void KickCopies(uint32_t shard) override { host_.KickWayTo(shard); }
  void ConfirmCopy(uint32_t shard, Header copied) override { host_.ConfirmCopy(shard, copied); }
  void FailCopy(uint64_t key, const Status& why) override;
  double CopyTime() const override { return host_.Now(); }
  StoreKey* FindKey(uint64_t key) override;
  void Replaced(uint64_t key) override;
  bool HasLeft(uint32_t rank) const override;
  void RestAt(uint64_t key, uint32_t rank) override;
  void WakeAt(uint64_t key, uint32_t rank) override;
  void Restored(uint64_t key, const Status& status, std::vector<PushAnswer> answers) override;
  uint32_t PutAside(uint64_t key) override;
  std::optional<uint32_t> OwnShard() const override;
  void AskAside(uint32_t shard, std::string text, ShardAsks::Then then) override;
  void AnswerRequest(uint32_t rank, const Header& header, const std::string& payload) override;
  void RefuseRequest(uint32_t rank, uint64_t key, const std::string& what) override;
  double RequestTime() const override;
  std::string Described(const Entry& entry, uint32_t rank, Awaited what) const;
  size_t EntryBytes() const;

  StoreHost& host_;
  ShardMemory& memory_;
  std::map<std::string, std::unique_ptr<Spec>, std::less<>> specs_;  // by text
  std::unordered_map<uint64_t, std::unique_ptr<Entry>> keys_;
  StoreFigures figures_;
  std::vector<Rank> ranks_;
  ShardCalls calls_;
  ShardSaving saving_;
  Copies copies_;
  ShardAsks asks_;
  SetAside aside_;  // of a world before
  uint32_t epoch_ = 0;
  bool hands_over_ = false;
  std::vector<PushAnswer> answers_;  // of the call under way,
  std::vector<MadeVersion> made_;    // and the versions that it has made of a key that has copies
  uint64_t order_ = 0;
  double contributed_ = 0;  // when the last contribution to any key came
};

}  // namespace byteps_like
