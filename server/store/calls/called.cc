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

CalledRows::CalledRows(Key table, IdRange range, ShardMemory& memory)
    : CalledValues({table}), memory_(memory), slots_(table.key->rows().Between(range.low, range.high)) {}

Status CalledRows::Run(const Command& command, const ServerCall& call, Figures* figures) {
  const size_t row = rows().row_bytes(), width = rows().width();
  const size_t most = std::max<size_t>(kAtATime / row, 1);
  if (slots_.empty()) return {};
  const ShardBuffer some = memory_.Take(std::min(most, slots_.size()) * row);
  if (some.size() == 0) return memory_.Exhausted();
  written_ = command.Writes(0);
  if (written_) results_ = memory_.Take(slots_.size() * row);
  if (written_ && results_.size() == 0) return memory_.Exhausted();
  for (size_t begin = 0; begin < slots_.size(); begin += most) {
    const auto slots = std::span(slots_).subspan(begin, std::min(most, slots_.size() - begin));
    rows().CopyRows(slots, some.data());
    const std::byte* const values = some.data();
    std::byte* const results = written_ ? results_.data() + begin * row : nullptr;
    const CommandRun run{.dtype = dtype(),
                         .count = slots.size() * width,
                         .width = width,
                         .values = {&values, 1},
                         .results = {&results, 1},
                         .scalars = call.scalars,
                         .figures = *figures};
    if (Status ran = command.Run(run); !ran.ok()) return ran;
    if (results != nullptr && !IsFinite(dtype(), results, run.count)) return NotFinite(call);
  }
  return {};
}

std::vector<uint64_t> CalledRows::Commit() {
  if (!written_) return {};
  keys().front().key->Replace(slots_, results_.data());
  return {keys().front().number};
}

}  // namespace byteps_like
