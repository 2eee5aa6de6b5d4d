#include "server/store/calls/shard_calls.h"

#include <algorithm>
#include <utility>

#include "server/store/calls/command.h"
#include "server/update/update.h"

namespace byteps_like {
namespace {

std::string KeyText(uint64_t key) { return "store key " + std::to_string(key); }

uint64_t KeyOf(uint32_t tensor, uint32_t part) { return uint64_t{tensor} << kTensorShift | part; }

}  // namespace

// One of each tensor, with the same number.
struct ShardCalls::Partition {
  std::vector<uint64_t> numbers;
  std::vector<StoreKey*> keys;
  std::vector<ShardBuffer> results;  // of those that are written
  std::vector<uint64_t> replaced;    // whose values are these by now
};

void ShardCalls::OnCall(uint32_t rank, const Header& header, std::span<const std::byte> payload) {
  auto call = DecodeCall(payload);
  if (!call.ok()) return keys_.RefuseRequest(rank, header.key, call.status().message());
  if (header.total > uint32_t{1} << kTensorShift)
    return keys_.RefuseRequest(rank, header.key, "a call on more partitions than a tensor can have");
  if (!requests_.Takes(rank, header)) return;
  waits_[rank] = {.header = header, .call = std::move(*call), .since = keys_.RequestTime()};
  TryToRun(rank);
}

void ShardCalls::OnChange(uint64_t key) {
  for (uint32_t rank = 0; rank < waits_.size(); ++rank)
    if (const auto& waits = waits_[rank]; waits && waits->blocked_by == key) TryToRun(rank);
}

// The call that this rank waits for, unless it may not read all of its values yet.
void ShardCalls::TryToRun(uint32_t rank) {
  Waiting waiting = std::move(*std::exchange(waits_[rank], std::nullopt));
  std::vector<Partition> partitions;
  Figures figures;
  Status status = Collect(waiting.header, waiting.call, &partitions);
  if (status.ok() && IsBlocked(rank, partitions, &waiting.blocked_by)) {
    waits_[rank] = std::move(waiting);
    return;
  }
  if (status.ok()) status = Run(waiting.call, partitions, &figures);
  Conclude(rank, waiting.header, status, figures);
  for (const Partition& one : partitions)
    for (const uint64_t key : one.replaced) keys_.Replaced(key);
}

// Those partitions of the tensors that are here.
Status ShardCalls::Collect(const Header& header, const ServerCall& call, std::vector<Partition>* found) {
  for (uint32_t part = 0; part < header.total; ++part) {
    if (keys_.FindKey(KeyOf(call.tensors.front(), part)) == nullptr) continue;
    Partition partition;
    for (const uint32_t tensor : call.tensors) {
      partition.numbers.push_back(KeyOf(tensor, part));
      StoreKey* const key = keys_.FindKey(partition.numbers.back());
      partition.keys.push_back(key);
      const StoreKey& first = *partition.keys.front();
      if (key == nullptr || key->dtype() != first.dtype() || key->size() != first.size())
        return Status(Code::kInvalid, KeyText(partition.numbers.front()) + " and " + KeyText(partition.numbers.back()) +
                                          " don't lie together: functions run on tensors of one store, of one shape"
                                          " and dtype");
    }
    partition.results.resize(partition.keys.size());
    found->push_back(std::move(partition));
  }
  if (found->size() == header.aux) return {};
  return Status(Code::kInvalid, KeyText(header.key) + ": " + std::to_string(found->size()) + " partitions of " +
                                    std::to_string(header.aux) + " have a value here");
}

// Whether there is one that this rank may not read, and which is the first.
bool ShardCalls::IsBlocked(uint32_t rank, std::span<const Partition> partitions, uint64_t* by) const {
  for (const Partition& one : partitions)
    for (size_t tensor = 0; tensor < one.keys.size(); ++tensor)
      if (!one.keys[tensor]->MayRead(rank)) {
        *by = one.numbers[tensor];
        return true;
      }
  return false;
}

Status ShardCalls::Run(const ServerCall& call, std::span<Partition> partitions, Figures* figures) {
  auto command = FindCommand(call.function);
  if (!command.ok()) return command.status();
  for (Partition& one : partitions) {
    Status status = (*command)->Check(one.keys.size(), one.keys.front()->dtype(), call.scalars);
    if (status.ok()) status = RunOn(**command, call, one, figures);
    if (!status.ok()) return Status(status.code(), KeyText(one.numbers.front()) + ": " + status.message());
  }
  for (Partition& one : partitions)
    for (size_t tensor = 0; tensor < one.keys.size(); ++tensor)
      if ((*command)->Writes(tensor)) {
        one.keys[tensor]->Replace(std::move(one.results[tensor]));
        one.replaced.push_back(one.numbers[tensor]);
      }
  return {};
}

Status ShardCalls::RunOn(const Command& command, const ServerCall& call, Partition& one, Figures* figures) {
  const StoreKey& first = *one.keys.front();
  const size_t count = first.size() / SizeOf(first.dtype());
  std::vector<Snapshot> snapshots;
  std::vector<const std::byte*> values;
  std::vector<std::byte*> results;
  for (size_t tensor = 0; tensor < one.keys.size(); ++tensor) {
    snapshots.push_back(one.keys[tensor]->value());
    values.push_back(snapshots.back().value->data());
    if (command.Writes(tensor)) {
      one.results[tensor] = memory_.Take(first.size());
      if (one.results[tensor].size() == 0) return memory_.Exhausted();
    }
    results.push_back(one.results[tensor].data());
  }
  if (Status run = command.Run({first.dtype(), count, values, results, call.scalars, *figures}); !run.ok()) return run;
  for (const std::byte* const result : results)
    if (result != nullptr && !IsFinite(first.dtype(), result, count))
      return Status(Code::kInvalid, "what comes of " + call.function +
                                        " has infinities or NaNs: nothing was changed on this shard, but others may"
                                        " have changed their part");
  return {};
}

// It is answered, now and whenever it comes again.
void ShardCalls::Conclude(uint32_t rank, const Header& header, const Status& status, const Figures& figures) {
  auto payload = EncodeFigures(figures);
  const Status& how = status.ok() ? payload.status() : status;
  requests_.Answer(rank, header, how, how.ok() ? std::move(*payload) : "");
}

std::vector<ShardCalls::Wait> ShardCalls::Waits() const {
  std::vector<Wait> found;
  for (uint32_t rank = 0; rank < waits_.size(); ++rank)
    if (const auto& waits = waits_[rank]) found.push_back({rank, waits->blocked_by, waits->since});
  return found;
}

}  // namespace byteps_like
