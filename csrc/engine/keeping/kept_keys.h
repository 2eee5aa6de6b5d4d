// The store keys that a worker uses on one link: whose turn it is, by priority and age, within the credit. On the I/O
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/engine/engine_context.h"
#include "csrc/engine/keeping/kept_calls.h"
#include "csrc/engine/keeping/kept_key.h"
#include "csrc/engine/keeping/kept_table.h"

namespace byteps_like {

class KeptKeys : private KeepSink {
 public:
  // `kick`: there may be a frame now.
  KeptKeys(EngineContext& context, KeepSink& sink, std::function<void()> kick);

  void Open(KeySpec spec, const std::string& text, const std::byte* initial, KeepTicket opening);
  void OpenTable(KeySpec spec, const std::string& text, KeepTicket opening);
  // These fail where the key was not opened, or as something else.
  void Push(uint64_t key, KeepPush push);
  void Read(uint64_t key, KeepRead read);
  void Fetch(uint64_t key, KeepFetch fetch);
  void Call(KeepCall call);
  void Ask(KeepCall request);   // a CUT or a STATE, of values or tables
  bool Forget(uint64_t key);    // which is not used again; false: there is none, or something is in flight
  void End(const Status& why);  // everything, and what comes later

  void OnNewLink();
  void Move(uint64_t key, KeptKeys& to);      // its server is gone, and that of `to` has a copy
  std::optional<int32_t> NextPriority();      // of the next frame; nullopt: there is none
  void Next(size_t segment, Outgoing& next);  // which there is

  bool Holds(uint64_t key) const { return keys_.contains(key); }
  std::byte* PlaceFor(const Header& header);  // as the next, of a key that it holds
  Status OnFrame(const Header& header, const std::byte* payload);
  Status OnAnswer(const Header& header, std::string payload);  // to a call or a request
  bool busy() const { return under_way_ != 0; }

 private:
  struct Entry {
    Kept& kept() { return value ? static_cast<Kept&>(*value) : *table; }
    std::unique_ptr<KeptKey> value;
    std::unique_ptr<KeptTable> table;  // one of the two
    bool queued = false;               // in `turns_`
  };
  struct Turn {
    Kept::Turn at;
    Entry* entry = nullptr;
    bool operator<(const Turn& other) const {
      return at.priority != other.at.priority ? at.priority < other.at.priority : at.order > other.at.order;
    }
  };

  KeptCalls* DueCalls();
  uint32_t NumberOf(const std::string& text);
  void Open(Entry& entry, const KeySpec& spec, const std::byte* initial, KeepTicket opening);
  Entry* Opened(uint64_t key, bool table, const KeepTicket& ticket);
  void Ask(KeptCalls& among, KeepCall call);
  Status CheckOpened(uint64_t key) const;
  Status CheckKind(uint64_t key, bool table) const;
  Status Refuse(Entry& entry, const Status& why);
  void Settled(const KeepTicket& ticket, const Status& status, KeepOutcome outcome) override;
  void CutOff(uint64_t key, bool is_so) override { sink_.CutOff(key, is_so); }
  void Dequeue(Entry& entry);
  void Queue(Entry& entry);
  bool HasCredit(uint64_t bytes) const;
  bool HasSent(uint64_t key, uint64_t order);
  void Starve(Entry& entry);
  void Feed();
  void LendCredit();

  EngineContext& context_;
  KeepSink& sink_;
  const std::function<void()> kick_;
  std::unordered_map<uint64_t, Entry> keys_;
  std::deque<std::string> texts_;  // of specs, by number; a frame may refer to one
  std::set<uint32_t> announced_;   // of those, to the server on this link
  KeptCalls calls_, saving_;
  std::priority_queue<Turn> turns_;
  std::vector<Entry*> starved_;  // for credit
  size_t under_way_ = 0;         // openings, contributions and reads
  uint64_t unanswered_ = 0;      // bytes
  uint64_t lent_ = 0;            // credit beyond the limit, while nothing is answered
  bool lending_armed_ = false;
  Deadline last_answer_{};
  std::optional<Status> ended_;
};

}  // namespace byteps_like
