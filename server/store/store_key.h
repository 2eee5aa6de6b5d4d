// A store key: a content (a dense value, or rows) under a policy, a way of combining, and an update. Contributions come
// whole, stay staged until they are applied or late, and are answered. Twin of byteps_like/store/key.py, to the last
// bit.
//
// A source may have missed an answer, because a link broke: then it pushes the contribution again. The key keeps each
// answer until its source has said that it has it (Heard), and gives the same again; it never guesses one. That a
// contribution is held is no final answer: it is said when it comes, and again when it is repeated.
//
// Not thread-safe: a key and handles of its content belong to one shard. Times are seconds of any one clock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/wire/note.h"
#include "server/memory.h"
#include "server/store/combining/combining.h"
#include "server/store/content/dense.h"
#include "server/store/content/rows.h"
#include "server/store/ledger.h"
#include "server/update/update.h"

namespace byteps_like {

// For the source of a contribution.
struct PushAnswer {
  StorePush push;
  Applied applied = Applied::kCounted;
  int64_t version = 0;  // that it is part of; where it is of none, the one in force when this was first said
  // The sources of what that version is made of, ascending, where several contributions were for it, or none.
  std::shared_ptr<const std::vector<uint32_t>> several = nullptr;

  std::vector<uint32_t> contributors() const {
    if (several != nullptr) return *several;
    return applied == Applied::kCounted && !push.idle ? std::vector{push.source} : std::vector<uint32_t>();
  }
};

// A version that was made, as whoever keeps a copy of the value makes it again.
struct MadeVersion {
  int64_t version = 0;
  double lr = 0;
  std::vector<StorePush> made_of;
  CombinedGradient gradient;
};

// What is done with contributions: keys of one tensor share it.
struct StoreRules {
  // Of canonical texts, and names with a space between each two. kInvalid.
  static Result<std::shared_ptr<const StoreRules>> Parse(std::string_view policy, std::string_view combining,
                                                         std::string_view update, std::string_view functions = {},
                                                         std::string_view first_values = "zeros");
  Status CheckType(DType dtype) const;                   // kInvalid if they have nothing to do with values of it
  Status CheckFunctions(const ValueShape& shape) const;  // kInvalid if one has a state
  const ValueUpdate& UpdateOf(const StorePush& push) const;
  std::string FunctionOf(const StorePush& push) const;  // its name, for messages
  std::unique_ptr<const StorePolicy> policy;
  std::unique_ptr<const Combining> combining;
  UpdatePointer update;
  std::unique_ptr<const FirstValues> first_values;  // of rows
  struct Function {
    std::string name;
    UpdatePointer update;
  };
  std::vector<Function> functions;  // which contributions may ask for instead
  bool is_idle = false;             // the update is "none"
};

// One version of a dense value, which stays as it is while this is there. The key's ShardMemory lives longer.
struct Snapshot {
  int64_t version = 0;
  std::shared_ptr<const ShardBuffer> value;
};

// No rows yet, of `width` elements.
struct StoreRows {
  DType dtype = DType::kFloat32;
  size_t width = 0;
};

class StoreKey {
 public:
  // Version 0 is `value`, of sources 0 to `sources` - 1. kInvalid if the rules have nothing to do with its type;
  // kCapacity. The memory lives longer.
  static Result<std::unique_ptr<StoreKey>> Make(std::shared_ptr<const StoreRules> rules, StoreValue value,
                                                uint32_t sources, double now, ShardMemory& memory);
  // kInvalid, too, if the update leaves rows as they are.
  static Result<std::unique_ptr<StoreKey>> Make(std::shared_ptr<const StoreRules> rules, StoreRows rows,
                                                uint32_t sources, double now, ShardMemory& memory);

  const Ledger& ledger() const { return ledger_; }
  // Of a dense value.
  Snapshot value() const { return {ledger_.version(), dense_->value()}; }
  std::span<const std::byte> state() const { return dense_->state(); }
  size_t size() const { return dense_->size(); }  // of the value, in bytes
  DType dtype() const { return content_->dtype(); }
  // Of rows.
  const RowContent& rows() const { return *rows_; }
  RowContent& rows() { return *rows_; }
  bool of_rows() const { return dense_ == nullptr; }
  bool MayRead(uint32_t reader) const { return ledger_.MayRead(reader); }  // a live source
  // When PassTime has something to do; nullopt: not before something else happens. Asked after each call.
  std::optional<double> ReadyAt() const { return rules_->policy->ReadyAt(ledger_); }
  bool Waiting() const { return !staged_.empty(); }  // some contributions are neither in a version nor late
  size_t waiting() const { return staged_.size(); }
  std::vector<uint32_t> Waiters() const;  // their sources
  // Whether this is a repetition, of which only the answer matters. Of a source that the ledger knows.
  bool HasCome(const StorePush& push) const { return push.clock < ledger_.Clock(push.source); }

  // Each of these adds to `answers` who can be answered by now, in order, also sources that have left. After kCapacity,
  // for want of memory for a copy while somebody reads, nothing has happened: it may be called again. Other errors are
  // those of the update, after which the key can't be used.

  // A contribution has come. It is only taken if it is no repetition, and if all is well; otherwise it has not come.
  // kCorrupt: as Ledger::Push, from who is no source, or again after its answer was Heard. kInvalid: a weight or a rate
  // that makes no sense. kMismatch: one version, two rates or functions.
  Status Push(WholePush&& whole, double now, std::vector<PushAnswer>* answers);
  Status PassTime(double now, std::vector<PushAnswer>* answers);
  // What a source has pushed counts, but nobody waits for it any more.
  Status Lose(uint32_t source, double now, std::vector<PushAnswer>* answers);

  // A source pushes nothing until it wakes: nobody waits for it meanwhile.
  Status Rest(uint32_t source, double now, std::vector<PushAnswer>* answers);
  void Wake(uint32_t source) { ledger_.Wake(source); }
  // From now on other rules, which differ in their policy alone, hold for what is here, too.
  Status Change(std::shared_ptr<const StoreRules> rules, double now, std::vector<PushAnswer>* answers);

  // The value becomes another one, as long, by no contribution: a version of its own.
  void Replace(ShardBuffer value) {
    dense_->Replace(std::move(value));
    ledger_.Amend();
  }

  // The same of some rows, at their slots.
  void Replace(std::span<const uint32_t> slots, const std::byte* values) {
    ledger_.Amend();
    rows_->Replace(slots, values, ledger_.version());
  }

  // The content and the version become those of another time: buffers as long as value and state, an empty one where
  // that stays as it is. Contributions that wait are late.
  Status Restore(ShardBuffer value, ShardBuffer state, int64_t version, double now, std::vector<PushAnswer>* answers);
  Result<std::unique_ptr<RowContent>> FreshRows() const;  // none yet, of this width
  Status Restore(std::unique_ptr<RowContent> rows, int64_t version, double now, std::vector<PushAnswer>* answers);

  int64_t Join(uint32_t source) { return ledger_.Join(source); }  // the clock of its first push
  // The source has had the answers to its contributions before `clock`.
  void Heard(uint32_t source, int64_t clock);

  // Copies. From here on each version that changes the content is added to `made`, which lives longer; nullptr: none.
  void Record(std::vector<MadeVersion>* made) { made_ = made; }
  // The answers that sources may not have, by source and clock.
  std::vector<PushAnswer> Unheard() const;
  int64_t FirstUnheard(uint32_t source) const;  // the clock of the first of them; if there is none, beyond all
  // This is a copy: makes a version as it was made there. Its gradient stays as it is. kCapacity, or an error of the
  // update, after which it can't be used.
  Status Follow(MadeVersion& made);
  // Its ledger is now at `version`, and these contributions are settled.
  void Follow(int64_t version, std::span<const PushAnswer> settled);
  void Follow(uint32_t source, int64_t clock, bool unfinished) { ledger_.Follow(source, clock, unfinished); }
  std::span<std::byte> state() { return dense_->state(); }
  std::span<std::byte> first_value() { return dense_->first_value(); }  // while nobody else has it
  Status AddRows(std::span<const std::byte> saved) { return rows_->Restore(saved); }

 private:
  using Id = std::pair<uint32_t, int64_t>;  // source, clock
  struct Staged {
    WholePush whole;
    bool is_finite;
  };

  StoreKey(std::shared_ptr<const StoreRules> rules, uint32_t sources, double now, ShardMemory& memory)
      : rules_(std::move(rules)), memory_(memory), ledger_(*rules_->policy, sources, now) {}
  static Id IdOf(const StorePush& push) { return {push.source, push.clock}; }
  Status Restored(int64_t version, double now, std::vector<PushAnswer>* answers);
  Status Check(const WholePush& whole) const;
  Status CheckAlike(const WholePush& whole) const;
  Status AnswerAgain(const StorePush& push, std::vector<PushAnswer>* answers) const;
  void Stage(WholePush whole);
  bool IsHeld(const StorePush& push) const;
  Status Answer(std::span<const Settled> events, ShardBuffer fresh, std::vector<PushAnswer>* answers);
  Status MakeVersion(std::span<const Settled> made, ShardBuffer& fresh, std::vector<PushAnswer>* answers);
  static void NameContributors(std::span<PushAnswer> answers);
  Result<bool> Apply(int64_t version, std::span<WholePush> pushes, ShardBuffer& fresh);

  std::shared_ptr<const StoreRules> rules_;
  ShardMemory& memory_;
  std::unique_ptr<StoreContent> content_;
  // The same, by its kind.
  DenseContent* dense_ = nullptr;
  RowContent* rows_ = nullptr;
  Ledger ledger_;
  std::map<Id, Staged> staged_;
  std::map<Id, PushAnswer> unheard_;  // final answers that their sources may not have
  std::vector<MadeVersion>* made_ = nullptr;
};

}  // namespace byteps_like
