// What workers save of one shard, and restore to it: all ranks meet behind their contributions to some keys (a cut),
// then what the keys keep is read, replaced, or set aside for the next world, in which other keys take it. Each request
// of a rank is answered once, and again if its answer was lost. On the shard's thread.
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
#include <vector>

#include "csrc/base/status.h"
#include "csrc/wire/frame.h"
#include "csrc/wire/saving.h"
#include "server/memory.h"
#include "server/store/requests.h"
#include "server/store/saving/shard_asks.h"
#include "server/store/store_key.h"
#include "server/store/wait.h"

namespace byteps_like {

// The store keys of the shard.
class SavedKeys : public virtual RequestHost {
 public:
  virtual bool HasLeft(uint32_t rank) const = 0;
  // Nobody waits for the rank's contributions to the key until it wakes. Each does nothing where it is so already.
  virtual void RestAt(uint64_t key, uint32_t rank) = 0;
  virtual void WakeAt(uint64_t key, uint32_t rank) = 0;
  // Its content was replaced, which has brought about these answers.
  virtual void Restored(uint64_t key, const Status& status, std::vector<PushAnswer> answers) = 0;
  // What the key keeps stays as it is from here on, and is there in the next world. The shard where that has a copy, or
  // kNoShard.
  virtual uint32_t PutAside(uint64_t key) = 0;
  // This shard, among those of all servers; nullopt: nothing goes on from this world.
  virtual std::optional<uint32_t> OwnShard() const = 0;
  // What SetAside::Answer says to it at that shard.
  virtual void AskAside(uint32_t shard, std::string text, ShardAsks::Then then) = 0;

 protected:
  ~SavedKeys() = default;
};

class ShardSaving {
 public:
  ShardSaving(SavedKeys& keys, ShardMemory& memory) : keys_(keys), memory_(memory), requests_(keys, "request") {}

  void Reset(uint32_t ranks);
  void OnFrame(uint32_t rank, const Header& header, std::span<const std::byte> payload);
  void OnLinkGone(uint32_t rank);  // it will ask again
  void OnLeft(uint32_t rank);
  void OnFreed(uint64_t key) { restored_.erase(key); }

  bool waits() const { return !cuts_.empty() || !taking_.empty(); }
  size_t restoring() const { return restored_.size(); }  // keys for which something was brought, but not yet committed
  // Ranks that have come to a cut, and wait for others: not while these still train, until `contributed`. And those
  // that wait for another shard.
  std::vector<StoreWait> Waits(double contributed) const;

 private:
  struct Comer {
    std::string word;
    Header header;
    double since = 0;
  };
  struct Cut {
    std::vector<uint64_t> keys;
    std::map<uint32_t, Comer> comers;  // by rank
  };
  struct Taking {
    uint32_t shard = 0;
    double since = 0;
  };
  // What is to be the content of a key.
  struct Restored {
    uint32_t by = 0;  // the rank that restores it: another one may bring some of it
    ShardBuffer value = {}, state = {};
    std::unique_ptr<RowContent> rows = {};
  };

  void OnCut(uint32_t rank, const Header& header, std::span<const std::byte> payload);
  void ConcludeIfAllAreHere(uint64_t first);
  void Conclude(uint64_t first, const Status& status);
  std::vector<uint32_t> MissingFor(const Cut& cut) const;
  std::string WordsOf(const Cut& cut) const;
  Result<std::string> Answered(uint32_t rank, std::span<const std::byte> payload);
  Result<std::string> Heads(std::span<const std::byte> keys);
  Result<std::string> PutAside(std::span<const std::byte> keys);
  void Answer(uint32_t rank, const Header& header, Result<std::string> answer);
  void Take(uint32_t rank, const Header& header, std::span<const std::byte> payload);
  void LetGo(uint32_t rank, const Header& header, std::span<const std::byte> payload);
  using Landing = std::function<Result<std::string>(std::string_view)>;
  void Ask(uint32_t rank, const Header& header, uint32_t shard, std::string asked, Landing land);
  Result<std::string> LandBytes(uint64_t number, uint8_t part, uint64_t target, std::string_view taken);
  Result<std::string> LandRows(uint64_t number, std::string_view taken);
  Status Write(const StoreKey& key, uint64_t number, std::span<const std::byte> brought);
  Status WriteRows(const StoreKey& key, uint64_t number, std::span<const std::byte> brought);
  Status Commit(StoreKey& key, uint64_t number, std::span<const std::byte> brought);

  SavedKeys& keys_;
  ShardMemory& memory_;
  NumberedRequests requests_;
  std::map<uint64_t, Cut> cuts_;           // by their first keys
  std::map<uint64_t, Restored> restored_;  // by key
  std::map<uint32_t, Taking> taking_;      // by the ranks for which something is on its way here from another shard
};

}  // namespace byteps_like
