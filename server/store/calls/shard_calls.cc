#include "server/store/calls/shard_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/store/calls/command.h"

namespace byteps_like {
namespace {

std::string KeyText(uint64_t key) { return "store key " + std::to_string(key); }

uint64_t KeyOf(uint32_t tensor, uint32_t part) { return uint64_t{tensor} << kTensorShift | part; }

// Of the partition, or of a row.
size_t SizeIn(const StoreKey& key) { return key.of_rows() ? key.rows().row_bytes() : key.size(); }

// kInvalid for partitions that no function runs on together, and for what is no table, where rows are asked for.
Status CheckBeside(const CalledValues::Key& first, const CalledValues::Key& other, const ServerCall& call) {
  const auto apart = [&](const std::string& why) { return Status(Code::kInvalid, KeyText(first.number) + why); };
  if (first.key->of_rows() != call.rows.has_value())
    return apart(call.rows ? " has no rows" : " has rows: a function runs on a range of them");
  const bool is_beside = other.key != nullptr && other.key->of_rows() == first.key->of_rows() &&
                         other.key->dtype() == first.key->dtype() && SizeIn(*other.key) == SizeIn(*first.key);
  if (is_beside) return {};
  return apart(" and " + KeyText(other.number) +
               " don't lie together: functions run on tensors of one store, of one shape and dtype");
}

}  // namespace

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
  All found;
  Figures figures;
  Status status = Collect(waiting.header, waiting.call, &found);
  if (status.ok() && IsBlocked(rank, found, &waiting.blocked_by)) {
    waits_[rank] = std::move(waiting);
    return;
  }
  if (status.ok()) status = Run(waiting.call, found, &figures);
  std::vector<uint64_t> replaced;
  for (const auto& one : found)
    if (status.ok()) std::ranges::copy(one->Commit(), std::back_inserter(replaced));
  for (const uint64_t key : replaced) keys_.Replaced(key);  // first, so that the answer waits for their copies
  Conclude(rank, waiting.header, status, figures);
}

// Those partitions of the tensors that are here; of tables, their rows.
Status ShardCalls::Collect(const Header& header, const ServerCall& call, All* found) {
  for (uint32_t part = 0; part < header.total; ++part) {
    if (keys_.FindKey(KeyOf(call.tensors.front(), part)) == nullptr) continue;
    std::vector<CalledValues::Key> keys;
    for (const uint32_t tensor : call.tensors) {
      keys.push_back({KeyOf(tensor, part), keys_.FindKey(KeyOf(tensor, part))});
      if (Status status = CheckBeside(keys.front(), keys.back(), call); !status.ok()) return status;
    }
    if (call.rows) {
      found->push_back(std::make_unique<CalledRows>(std::move(keys), *call.rows, memory_));
    } else {
      found->push_back(std::make_unique<CalledPartition>(std::move(keys), memory_));
    }
  }
  if (found->size() == header.aux) return {};
  return Status(Code::kInvalid, KeyText(header.key) + ": " + std::to_string(found->size()) + " partitions of " +
                                    std::to_string(header.aux) + " have a value here");
}

// Whether there is one that this rank may not read, and which is the first.
bool ShardCalls::IsBlocked(uint32_t rank, const All& all, uint64_t* by) {
  for (const auto& one : all)
    for (const auto& [number, key] : one->keys())
      if (!key->MayRead(rank)) {
        *by = number;
        return true;
      }
  return false;
}

Status ShardCalls::Run(const ServerCall& call, const All& all, Figures* figures) {
  auto command = FindCommand(call.function);
  if (!command.ok()) return command.status();
  for (const auto& one : all) {
    Status status = (*command)->Check(one->keys().size(), one->dtype(), call.scalars);
    if (status.ok()) status = one->Run(**command, call, figures);
    if (!status.ok()) return Status(status.code(), KeyText(one->keys().front().number) + ": " + status.message());
  }
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
