// The rows of a table at one shard as a worker uses them: what it contributes to some of them and wants to read, in the
// order of its calls, on whatever link there is. docs/reference/protocol.md, "Tables", has the sequences.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include "csrc/engine/keeping/contributions.h"
#include "csrc/engine/keeping/kept.h"
#include "csrc/engine/keeping/key_door.h"
#include "csrc/engine/keeping/row_numbers.h"

namespace byteps_like {

// A read of some rows to `out`, in their order; those that there are not are zeros. To KeepOperation::ranges: what
// filters on the server have made of them (`filtered`), or, without `rows`, those from `range[0]` to before `range[1]`
// that there are, of versions beyond `since`: of more than `most` the first ones, where that isn't 0.
struct KeepFetch {
  std::shared_ptr<const RowList> rows = nullptr;
  std::array<uint64_t, 2> range{};
  uint64_t since = 0;
  uint32_t most = 0;
  std::byte* out = nullptr;
  bool filtered = false;
  int32_t priority = 0;
  uint64_t order = 0;
  KeepTicket ticket;
};

class KeptTable final : public Kept {
 public:
  KeptTable(const KeySpec& spec, KeepSink& sink, RowNumbers::Limits limits = {});
  KeptTable(const KeptTable&) = delete;

  void Open(const std::byte* initial, KeepTicket opening) override;
  void Change(uint32_t text, KeepTicket change) override { door_.Change(text, std::move(change)); }
  void Push(KeepPush push);
  void Fetch(KeepFetch fetch);

  void OnNewLink() override;
  void Move(KeepSink& sink, const Renumber& renumber) override;
  std::optional<Turn> next() override;
  std::optional<uint64_t> begins() override;
  void Next(size_t segment, Outgoing& next) override;

  std::byte* PlaceFor(const Header& header) override;
  Status OnFrame(const Header& header, const std::byte* payload) override;
  void End(const Status& why) override;

  const KeySpec& spec() const override { return door_.spec(); }
  uint64_t unanswered() const override { return pushes_.unanswered(); }
  bool opened() const override { return door_.opened(); }
  bool HasSent(uint64_t order) override {
    const Pushing* const unsent = pushes_.unsent();
    return door_.open() && (unsent == nullptr || unsent->order > order);
  }
  bool busy() const override { return door_.busy() || !pushes_.empty() || !fetches_.empty(); }
  size_t under_way() const override { return door_.under_way() + pushes_.size() + fetches_.size(); }

 private:
  struct Fetching : KeepFetch {
    uint32_t clock = 0;
    uint32_t request = 0;            // its number
    std::optional<uint32_t> number;  // of its list
    bool asked = false;
    uint32_t landed = 0;
    uint32_t total = 0;    // of the answer, of which something has landed,
    uint32_t version = 0;  // and its version
  };

  bool changes_next();
  Fetching* NextFetch();
  Fetching* FetchToSend();
  Pushing* PushToSend();
  bool HasNumber(Fetching& fetch);
  bool HasNumber(const Pushing& push);
  bool tells(const Pushing& push) const;  // which rows it is about, before anything of it
  void SendFetch(Fetching& fetch, size_t segment, Outgoing& next);
  void SendRows(Pushing& push, size_t segment, Outgoing& next);
  Status OnOpened(const Header& header);
  Status OnApplied(const Header& header, const std::byte* payload);
  void OnNack(const Header& header);
  std::list<Fetching>::iterator Awaited(uint32_t request);
  bool Fits(const Fetching& fetch, const Header& header) const;
  Status OnValue(const Header& header);

  KeepSink* sink_;
  KeyDoor door_;
  RowNumbers numbers_;
  Contributions pushes_;
  std::unordered_map<uint32_t, uint32_t> lists_;  // of contributions, by clock: numbers
  std::list<Fetching> fetches_;
  uint32_t requests_ = 0;
};

}  // namespace byteps_like
