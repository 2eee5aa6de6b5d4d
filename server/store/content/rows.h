// Rows of one width by u64 id, each with the state of its update, a version of its own, and a count of its updates.
//
// A row has first values, zeros for example. It exists once a version was made of a contribution that names it, or a
// function has written it; its memory is taken before, so that nothing can fail later. All contributions of a version
// are merged by id: each multiplied by its factor, added from the first to the last of those that have the row. Then
// the update is applied to each row as to a tensor of its own. Twin of byteps_like/store/rows.py, to the last bit.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/wire/call.h"
#include "server/store/content/content.h"
#include "server/store/content/first_values.h"
#include "server/store/content/row_table.h"

namespace byteps_like {

// What a reader gets: bytes as VALUE brings them (docs/reference/protocol.md, "Tables").
struct RowAnswer {
  ShardBuffer buffer;
  size_t bytes = 0;
};

class RowContent final : public StoreContent {
 public:
  // Empty. kCapacity. The memory and the first values live longer.
  static Result<std::unique_ptr<RowContent>> Make(const ValueUpdate& update, const FirstValues& first_values,
                                                  DType dtype, size_t width, ShardMemory& memory);

  size_t row_bytes() const { return row_bytes_; }
  size_t width() const { return width_; }

  // Each kCapacity; kInvalid if it is more than `most` bytes.
  // All rows of `ids`.
  Result<RowAnswer> All(std::span<const uint64_t> ids, size_t most) const;
  // Those whose version is more than `bound` beyond the known one, which kUnknown is always.
  Result<RowAnswer> Stale(std::span<const uint64_t> ids, const uint32_t* known, uint64_t bound, size_t most) const;
  // Those of a range that exist; of more than `count` rows the first ones, where that isn't 0.
  Result<RowAnswer> Range(const IdRange& range, size_t count, size_t most) const;

  // The same by their slots, ascending by id; where others of some ids are, kNone for what isn't there, or, where they
  // are to be written, made; and what is done with them: their values are copied, first values where there is none, or
  // become others, of `version`.
  using Found = std::vector<std::pair<uint64_t, uint32_t>>;  // ids and slots
  Found Between(const IdRange& range) const { return Find(range, table_.size()); }
  std::vector<uint32_t> Slots(std::span<const uint64_t> ids) const;
  Status MakeSlots(std::span<const uint64_t> ids, std::vector<uint32_t>* slots);  // kCapacity
  void CopyRows(std::span<const uint64_t> ids, std::span<const uint32_t> slots, std::byte* to) const;
  void Replace(std::span<const uint32_t> slots, const std::byte* values, int64_t version);

  // One that exists, for tests: `state` is of the value's type.
  struct Row {
    uint32_t version = 0, updates = 0;
    const std::byte* value = nullptr;
    const std::byte* state = nullptr;
  };
  std::optional<Row> Find(uint64_t id) const;
  size_t state_bytes() const { return state_bytes_; }

  // Appends rows that exist, from a place on that is 0 at first, to about `most` bytes: of each its id, then its
  // version, its updates, its value and its state, filled up to whole words. Where to go on; 0: that is all. `wanted`:
  // of which ids; nullptr: of all.
  using Wanted = std::function<bool(uint64_t id)>;
  uint64_t Save(uint64_t place, size_t most, std::string* to, const Wanted& wanted = nullptr) const;
  size_t saved_bytes() const { return sizeof(uint64_t) + table_.record_bytes(); }  // of a row
  uint64_t all_saved_bytes() const { return table_.size() * saved_bytes(); }
  // Has these rows, as Save has written them. kInvalid; kCapacity: some may be there.
  Status Restore(std::span<const std::byte> saved);

  DType dtype() const override { return dtype_; }
  size_t CountOf(const WholePush& whole) const override { return whole.rows.list->count * width_; }
  Status Admit(WholePush& whole) override;
  Result<bool> Apply(const VersionCall& call, ShardBuffer& fresh) override;
  Result<CombinedGradient> TakeCombined(std::span<WholePush> applied) const override;

 private:
  // Of a record; then the value, then the state.
  struct Head {
    uint32_t version = 0;  // of the table, when it was last updated
    uint32_t updates = 0;
    bool exists() const { return version != 0 || updates != 0; }
  };

  RowContent(const ValueUpdate& update, const FirstValues& first_values, DType dtype, size_t width,
             ShardMemory& memory);
  Head& HeadAt(uint32_t slot) const { return *reinterpret_cast<Head*>(table_.At(slot)); }
  Status FindOrMake(std::span<const uint64_t> ids, uint32_t* slots);
  std::byte* ValueAt(uint32_t slot) const { return table_.At(slot) + sizeof(Head); }
  std::byte* GradientOf(const WholePush& push, size_t row) const { return push.gradient.data() + row * row_bytes_; }
  bool AddUpAll(const VersionCall& call) const;
  Status Update(const VersionCall& call, uint32_t slot, const std::byte* gradient);
  Status UpdateMerged(const VersionCall& call);
  bool Has(const IdRange& range, uint64_t id, uint32_t slot) const;
  Found Find(const IdRange& range, size_t most) const;
  Found First(IdRange range, size_t count) const;
  Result<RowAnswer> Taken(size_t bytes, size_t most) const;

  ShardMemory& memory_;
  const FirstValues& first_values_;
  const DType dtype_;
  const size_t width_, row_bytes_, state_bytes_;
  RowTable table_;
  ShardBuffer fresh_;  // the record of a new row, but for its value
};

}  // namespace byteps_like
