#include "server/store/calls/called.h"

#include <algorithm>
#include <utility>

#include "server/store/calls/command.h"
#include "server/update/update.h"

namespace byteps_like {
namespace {

constexpr size_t kAtATime = 1 << 20;  // bytes of rows

Status NotFinite(const ServerCall& call) {
  return Status(Code::kInvalid, "what comes of " + call.function +
                                    " has infinities or NaNs: nothing was changed on this shard, but others may have"
                                    " changed their part");
}

}  // namespace

// Partitions

Status CalledPartition::Run(const Command& command, const ServerCall& call, Figures* figures) {
  const size_t bytes = keys().front().key->size(), count = bytes / SizeOf(dtype());
  std::vector<Snapshot> snapshots;
  std::vector<const std::byte*> values;
  std::vector<std::byte*> results;
  for (size_t tensor = 0; tensor < keys().size(); ++tensor) {
    snapshots.push_back(keys()[tensor].key->value());
    values.push_back(snapshots.back().value->data());
    if (command.Writes(tensor)) {
      results_[tensor] = memory_.Take(bytes);
      if (results_[tensor].size() == 0) return memory_.Exhausted();
    }
    results.push_back(results_[tensor].data());
  }
  const CommandRun run{.dtype = dtype(),
                       .count = count,
                       .values = values,
                       .results = results,
                       .scalars = call.scalars,
                       .figures = *figures};
  if (Status ran = command.Run(run); !ran.ok()) return ran;
  const auto is_fine = [&](const std::byte* result) { return result == nullptr || IsFinite(dtype(), result, count); };
  return std::ranges::all_of(results, is_fine) ? Status() : NotFinite(call);
}

std::vector<uint64_t> CalledPartition::Commit() {
  std::vector<uint64_t> replaced;
  for (size_t tensor = 0; tensor < keys().size(); ++tensor) {
    if (results_[tensor].size() == 0) continue;
    keys()[tensor].key->Replace(std::move(results_[tensor]));
    replaced.push_back(keys()[tensor].number);
  }
  return replaced;
}

// Rows

CalledRows::CalledRows(std::vector<Key> tables, const IdRange& range, ShardMemory& memory)
    : CalledValues(std::move(tables)), memory_(memory), tables_(keys().size()) {
  for (const auto& [id, slot] : rows(0).Between(range)) {
    ids_.push_back(id);
    tables_.front().slots.push_back(slot);
  }
}

Status CalledRows::Prepare(const Command& command) {
  for (size_t i = 0; i < tables_.size(); ++i) {
    Table& table = tables_[i];
    table.written = command.Writes(i);
    if (i != 0 && !table.written) table.slots = rows(i).Slots(ids_);
    if (!table.written || ids_.empty()) continue;
    if (i != 0)
      if (Status made = rows(i).MakeSlots(ids_, &table.slots); !made.ok()) return made;
    table.results = memory_.Take(ids_.size() * row_bytes());
    if (table.results.size() == 0) return memory_.Exhausted();
  }
  return {};
}

Status CalledRows::Run(const Command& command, const ServerCall& call, Figures* figures) {
  if (Status prepared = Prepare(command); !prepared.ok() || ids_.empty()) return prepared;
  const size_t row = row_bytes(), width = rows(0).width();
  const size_t most = std::min(std::max<size_t>(kAtATime / row, 1), ids_.size());
  const ShardBuffer some = memory_.Take(tables_.size() * most * row);
  if (some.size() == 0) return memory_.Exhausted();
  std::vector<const std::byte*> values(tables_.size());
  std::vector<std::byte*> results(tables_.size());
  for (size_t begin = 0; begin < ids_.size(); begin += most) {
    const size_t count = std::min(most, ids_.size() - begin);
    for (size_t i = 0; i < tables_.size(); ++i) {
      std::byte* const to = some.data() + i * most * row;
      rows(i).CopyRows(std::span(ids_).subspan(begin, count), std::span(tables_[i].slots).subspan(begin, count), to);
      values[i] = to;
      results[i] = tables_[i].written ? tables_[i].results.data() + begin * row : nullptr;
    }
    const CommandRun run{.dtype = dtype(),
                         .count = count * width,
                         .width = width,
                         .values = values,
                         .results = results,
                         .scalars = call.scalars,
                         .figures = *figures};
    if (Status ran = command.Run(run); !ran.ok()) return ran;
    for (const std::byte* const result : results)
      if (result != nullptr && !IsFinite(dtype(), result, run.count)) return NotFinite(call);
  }
  return {};
}

// Of a table without any of the rows there is a new version, too: so it has the same on all shards.
std::vector<uint64_t> CalledRows::Commit() {
  std::vector<uint64_t> replaced;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (!tables_[i].written) continue;
    keys()[i].key->Replace(tables_[i].slots, tables_[i].results.data());
    replaced.push_back(keys()[i].number);
  }
  return replaced;
}

}  // namespace byteps_like
