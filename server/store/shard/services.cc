// What calls of functions and checkpoints need of the store.
#include <utility>

#include "server/store/shard/store_entry.h"

namespace byteps_like {

void ShardStore::AnswerRequest(uint32_t rank, const Header& header, const std::string& payload) {
  if (copies_.are_settled()) return host_.Answer(rank, header, payload);
  copies_.AfterAll(rank, OnThisLink(rank, [this, rank, header, payload] { host_.Answer(rank, header, payload); }));
}

void ShardStore::RefuseRequest(uint32_t rank, uint64_t key, const std::string& what) { Refuse(rank, key, what); }

StoreKey* ShardStore::FindKey(uint64_t key) {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : found->second->key.get();
}

double ShardStore::RequestTime() const { return host_.Now(); }

// Calls

void ShardStore::OnCall(uint32_t rank, const Header& header, const std::byte* payload) {
  calls_.OnCall(rank, header, {payload, header.length});
}

void ShardStore::Replaced(uint64_t key) {
  CopyWhole(*keys_.at(key));
  Done(*keys_.at(key), Status());
}

// Checkpoints

void ShardStore::OnSaving(uint32_t rank, const Header& header, const std::byte* payload) {
  saving_.OnFrame(rank, header, {payload, header.length});
}

bool ShardStore::HasLeft(uint32_t rank) const { return ranks_[rank].left; }

void ShardStore::RestAt(uint64_t key, uint32_t rank) {
  Entry& entry = *keys_.at(key);
  if (entry.key->ledger().source(rank).live && !entry.set_aside)
    Done(entry, entry.key->Rest(rank, host_.Now(), &answers_), rank);
}

void ShardStore::WakeAt(uint64_t key, uint32_t rank) {
  StoreKey* const saved = FindKey(key);
  if (saved != nullptr && saved->ledger().source(rank).resting) saved->Wake(rank);
}

void ShardStore::Restored(uint64_t key, const Status& status, std::vector<PushAnswer> answers) {
  answers_ = std::move(answers);
  keys_.at(key)->filtered = {};  // a version may come again, with another value
  if (status.ok()) CopyWhole(*keys_.at(key));
  Done(*keys_.at(key), status);
}

// Between two worlds

uint32_t ShardStore::PutAside(uint64_t key) {
  keys_.at(key)->set_aside = true;
  return copies_.SetAside(key).value_or(kNoShard);
}

std::optional<uint32_t> ShardStore::OwnShard() const {
  return copies_.shards() == 0 ? std::nullopt : std::optional(copies_.own());
}

void ShardStore::AskAside(uint32_t shard, std::string text, ShardAsks::Then then) {
  if (OwnShard() == shard) return then(aside_.Answer(std::as_bytes(std::span(text))));
  asks_.Ask(shard, std::move(text), std::move(then));
  if (shard < copies_.shards()) host_.KickWayTo(shard);
}

bool ShardStore::NextForShard(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep) {
  return asks_.Next(shard, next, keep) || copies_.Next(shard, next, keep);
}

}  // namespace byteps_like
