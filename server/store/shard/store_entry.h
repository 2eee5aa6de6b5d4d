// What a shard's store knows of each key and rank. For the files of this folder: shard_store.h has the class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "csrc/wire/note.h"
#include "server/store/lists.h"
#include "server/store/shard/shard_store.h"
#include "server/store/shard/spec_text.h"

namespace byteps_like {

inline constexpr size_t kMostReads = 1u << 16;  // that a rank may wait for, or leave unread

inline std::string RankText(uint32_t rank) { return "rank " + std::to_string(rank); }
inline std::string StoreKeyText(uint64_t key) { return "store key " + std::to_string(key); }

struct ShardStore::Spec {
  bool of_rows() const { return IsOfRows(text); }
  std::string policy() const { return PolicyIn(text); }
  // All but the policy is the same.
  bool IsVariantOf(const Spec& other) const {
    return std::string_view(text).substr(text.find('\n')) == std::string_view(other.text).substr(other.text.find('\n'));
  }

  std::string text;
  std::shared_ptr<const StoreRules> rules;
  std::shared_ptr<const Filters> filters;
  uint32_t replicas = 1;
};

// A rank that wants the value, and waits until it may have it.
struct ShardStore::Reader {
  uint32_t rank = 0;
  FrameType type = FrameType::kValue;  // or kResult, after a contribution
  uint32_t round = 0;                  // as the rank's frame had it
  int64_t clock = 0;                   // contributions that must be here, or settled, before
  int64_t least = 0;                   // version
  std::optional<uint32_t> known;       // version that it has
  uint32_t begin = 0, end = 0;         // bytes
  int32_t priority = 0;
  double since = 0;
  std::optional<double> held_up = {};  // since when others keep it waiting: its own contributions are there
  std::optional<Fetch> fetch = {};     // of a table
};

// What filters have made of the value of a version, as long as it is on its way to somebody.
struct ShardStore::FilteredValue {
  int64_t version = -1;
  uint32_t bytes = 0;
  std::weak_ptr<const ShardBuffer> payload;
};

// A contribution, or a first value, that comes in segments.
struct ShardStore::Arrival {
  bool begun = false;
  uint32_t round = 0;
  uint32_t total = 0;    // bytes
  uint32_t counted = 0;  // of these
  uint32_t heard = 0;    // its sender knows what became of those before
  bool silent = false;
  bool idle = false;  // its source brings nothing
  int32_t priority = 0;
  Note note;
  ShardBuffer buffer;
  std::shared_ptr<const IdList> list;  // of which it has rows
  std::optional<uint32_t> nacked;      // whose list was not there: nothing counts before its first segment comes again
};

struct ShardStore::Sending {
  int32_t priority = 0;
  uint64_t order = 0;
  Header header;  // whose offset moves on
  std::shared_ptr<const ShardBuffer> value;
  bool operator<(const Sending& other) const {
    return priority != other.priority ? priority < other.priority : order > other.order;
  }
};

// A contribution that was not settled when it came.
struct ShardStore::Pending {
  uint32_t rank = 0;
  int64_t clock = 0;
  double since = 0;
};

// A rank that waits for a first value, or for another policy.
struct ShardStore::Opener {
  uint32_t rank = 0;
  double since = 0;
};

struct ShardStore::Entry {
  // The policy may be the one before, on whose change a rank has no answer yet.
  bool IsLike(const Entry& other) const {
    return (spec == other.spec || former == other.spec) && dtype == other.dtype && total == other.total &&
           width == other.width && begun_by == other.begun_by;
  }
  std::string Text() const {
    const std::string begins = begun_by == kNoRank ? "zeros" : "the value of " + RankText(begun_by);
    return RankText(first) + " has " + std::to_string(total) + " bytes of " + NameOf(dtype) + " in rows of " +
           std::to_string(width) + ", from " + begins + ", " + spec->text;
  }

  bool of_rows() const { return spec->of_rows(); }

  bool taken_over = false;  // from a server that is gone
  bool set_aside = false;   // stays as it is, for the next world
  uint32_t home = 0;        // shard, of all, where it was at first
  uint64_t number = 0;
  const Spec* spec = nullptr;
  const Spec* former = nullptr;    // before the policy was changed
  const Spec* proposed = nullptr;  // by ranks that wait until all others have done so
  std::vector<Opener> proposers;
  DType dtype{};
  uint32_t total = 0;           // bytes of the value; of a table, of a row
  uint64_t width = 0;           // elements of a row
  uint32_t begun_by = kNoRank;  // sets the first value
  uint32_t first = 0;           // rank that has named it first
  std::vector<Opener> openers;
  std::unique_ptr<StoreKey> key;  // nullptr: it has no value yet
  FilteredValue filtered;         // the newest that somebody has read
  std::vector<Arrival> arrivals;  // by rank
  std::vector<IdLists> lists;     // by rank, of its link
  std::vector<Reader> readers;
  std::vector<Pending> pending;
  KeyFigures* figures = nullptr;
  std::vector<bool> forgotten;  // by rank
  std::vector<bool> opened;     // by rank, whether its link uses it
  // The version before the one that ranks were last told would be made without them.
  std::optional<int64_t> cut_off_at;
  // Since when contributions have been here that no version was made of, nor of others meanwhile.
  std::optional<double> held_since;
  int64_t held_at = 0;  // that version
};

struct ShardStore::Rank {
  std::vector<const Spec*> specs;  // as its link has numbered them
  std::priority_queue<Sending> sendings;
  std::deque<std::shared_ptr<const ShardBuffer>> under_way;  // of each frame
  bool left = false;
  uint64_t links = 0;  // that are gone
};

// At once, unless a copy has yet to come to where the key is now.
template <typename Then>
void ShardStore::SayCopied(const Entry& entry, uint32_t rank, Then then) {
  if (ReplicasOf(entry) < 2) return then();
  copies_.After(entry.number, rank, OnThisLink(rank, std::move(then)));
}

}  // namespace byteps_like
