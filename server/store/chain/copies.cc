#include "server/store/chain/copies.h"

#include <algorithm>
#include <string>
#include <utility>

#include "csrc/wire/adopter.h"
#include "server/store/chain/snapshot.h"

namespace byteps_like {

void Copies::Reset(uint32_t ranks, std::vector<uint32_t> servers, uint32_t own) {
  ranks_ = ranks;
  servers_ = std::move(servers);
  own_ = own;
  lost_.clear();
  successors_.clear();
  ending_.clear();
  copies_.clear();
  replaced_.clear();
  turns_.clear();
  queued_.clear();
  held_ = 0;
  replicated_.clear();
}

// Successors ------------------------------------------------------------------------------------------------------

// The shard that would take over what was at that home if those servers were gone, too; nullopt: nobody would be left.
std::optional<uint32_t> Copies::Next(uint32_t home, const std::vector<uint32_t>& before) const {
  std::optional<uint32_t> best;
  for (uint32_t shard = 0; shard < servers_.size(); ++shard) {
    if (lost_.contains(servers_[shard]) || std::ranges::count(before, servers_[shard]) != 0) continue;
    if (!best || DrawOf(home, shard) > DrawOf(home, *best)) best = shard;
  }
  return best;
}

void Copies::Begin(uint64_t key, uint32_t home, const Whole& whole) {
  if (!servers_.empty()) Begin(key, home, {servers_[own_]}, whole);
}

void Copies::Begin(uint64_t key, uint32_t home, const std::vector<uint32_t>& before, const Whole& whole) {
  const auto next = Next(home, before);
  Successor& successor = successors_.try_emplace(key, key).first->second;
  ending_.erase(key);
  if (next) {
    auto record = whole(before);
    if (!record.ok()) return host_.FailCopy(key, record.status());
    successor.Begin(*next, std::move(*record));
    Queue(key, successor);
  } else {
    successor.End();
  }
  Watch(key, successor);
}

// Whether it is to be counted as one that has a copy.
void Copies::Watch(uint64_t key, const Successor& successor) {
  if (successor.is_held() && !copies_.contains(key)) {
    replicated_.insert(key);
  } else {
    replicated_.erase(key);
  }
}

bool Copies::Has(uint64_t key) const {
  const auto found = successors_.find(key);
  return found != successors_.end() && found->second.shard().has_value() && !ending_.contains(key);
}

void Copies::Update(uint64_t key, CopyRecord update) {
  Successor& successor = successors_.at(key);
  successor.Update(std::move(update));
  Queue(key, successor);
}

void Copies::After(uint64_t key, uint32_t rank, std::function<void()> say) {
  const auto found = successors_.find(key);
  if (found == successors_.end()) return say();
  found->second.After(rank, host_.CopyTime(), std::move(say));
}

bool Copies::are_settled() const {
  return std::ranges::none_of(successors_, [](const auto& one) { return one.second.defers(); });
}

void Copies::AfterAll(uint32_t rank, std::function<void()> say) {
  auto left = std::make_shared<size_t>(1);
  const auto one_less = [left, say = std::move(say)] {
    if (--*left == 0) say();
  };
  for (auto& [key, successor] : successors_)
    if (successor.defers()) {
      ++*left;
      successor.After(rank, host_.CopyTime(), one_less);
    }
  one_less();
}

std::vector<std::pair<uint64_t, Successor::Wait>> Copies::LongestWaits() const {
  std::vector<std::pair<uint64_t, Successor::Wait>> waits;
  for (const auto& [key, successor] : successors_)
    if (const auto wait = successor.LongestWait()) waits.emplace_back(key, *wait);
  return waits;
}

void Copies::Forget(uint64_t key) {
  const auto found = successors_.find(key);
  if (found == successors_.end()) return;
  if (!found->second.shard()) {
    successors_.erase(found);
    return;
  }
  ending_.insert(key);
  Discard(key, found->second);
}

std::optional<uint32_t> Copies::SetAside(uint64_t key) {
  const auto found = successors_.find(key);
  if (found == successors_.end() || !found->second.shard()) return std::nullopt;
  found->second.SetAside();
  Queue(key, found->second);
  return HasCopy(key) ? found->second.shard() : std::nullopt;
}

void Copies::Discard(uint64_t key, Successor& successor) {
  successor.Discard();
  Queue(key, successor);
  Watch(key, successor);
}

void Copies::Queue(uint64_t key, const Successor& successor) {
  if (!successor.shard() || !successor.has_next()) return;
  if (queued_.emplace(*successor.shard(), key).second) turns_[*successor.shard()].push_back(key);
  host_.KickCopies(*successor.shard());
}

std::vector<uint64_t> Copies::Lose(uint32_t server) {
  std::vector<uint64_t> keys;
  std::erase_if(replaced_, [&](const Kept& one) { return servers_[one.from] == server; });
  if (!lost_.insert(server).second) return keys;
  for (const auto& [key, successor] : successors_)
    if (successor.shard() && servers_[*successor.shard()] == server) keys.push_back(key);
  std::ranges::sort(keys);
  std::erase_if(keys, [this](uint64_t key) {
    if (ending_.erase(key) != 0) {
      successors_.at(key).End();
      return successors_.erase(key) != 0;
    }
    const auto copy = copies_.find(key);
    if (copy == copies_.end()) return false;
    if (copy->second.copy->forwards()) {
      BeginBehind(key, *copy->second.copy);
    } else {
      successors_.at(key).End();  // until there is something to begin with
    }
    return true;
  });
  return keys;
}

// One frame of each key after the other.
bool Copies::Next(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep) {
  auto& turns = turns_[shard];
  while (!turns.empty()) {
    const uint64_t key = turns.front();
    turns.pop_front();
    queued_.erase({shard, key});
    const auto found = successors_.find(key);
    if (found == successors_.end() || found->second.shard() != shard || !found->second.has_next()) continue;
    keep = found->second.Next(next);
    if (found->second.has_next() && queued_.emplace(shard, key).second) turns.push_back(key);
    return true;
  }
  return false;
}

void Copies::OnNewWay(uint32_t shard) {
  for (auto& [key, successor] : successors_) {
    if (successor.shard() != shard) continue;
    successor.OnNewLink();
    Queue(key, successor);
  }
}

void Copies::OnCopied(uint32_t shard, const Header& header) {
  const auto found = successors_.find(header.key);
  if (found == successors_.end() || found->second.shard() != shard) return;
  if (!found->second.Confirm(header.round))
    return host_.FailCopy(header.key, Status(Code::kCorrupt, "a copy has more than it was sent"));
  Queue(header.key, found->second);
  Watch(header.key, found->second);
  if (ending_.contains(header.key) && !found->second.has_unconfirmed()) {
    ending_.erase(header.key);
    successors_.erase(header.key);
  }
}

// Copies ----------------------------------------------------------------------------------------------------------

std::byte* Copies::PlaceFor(uint32_t shard, const Header& header) {
  const auto found = copies_.find(header.key);
  if (found == copies_.end() || found->second.from != shard || !found->second.copy->IsNext(header)) return nullptr;
  return found->second.copy->PlaceFor(header);
}

// What a link that broke may have brought before is confirmed again.
void Copies::OnCopy(uint32_t shard, const Header& header, const std::byte* payload) {
  if (lost_.contains(servers_[shard])) return;
  if (header.aux == kCopyEnds) return EndCopy(shard, header);
  CopiedKey* const copy = Accept(shard, header, payload);
  if (copy == nullptr) return;
  if (header.aux == kCopyBegins) Confirm(shard, header.key, header.round);
  if (!copy->is_settled()) return;
  PassOn(header.key, *copy);
  Confirm(shard, header.key, copy->last());
}

// nullptr: it has failed, or comes from a server that another one has found to be gone.
CopiedKey* Copies::Accept(uint32_t shard, const Header& header, const std::byte* payload) {
  const auto found = copies_.find(header.key);
  CopiedKey* const there = found == copies_.end() ? nullptr : found->second.copy.get();
  CopiedKey* const copy = there == nullptr || found->second.from != shard ? nullptr : there;
  if (copy != nullptr && static_cast<int32_t>(header.round - copy->last()) <= 0) return copy;
  Status status;
  if (header.aux == kCopyBegins) {
    auto made = CopiedKey::Make(header, {payload, header.length}, ranks_, host_.CopyTime(), memory_);
    const bool is_late = made.ok() && copy == nullptr && there != nullptr && there->IsCloserThan(**made);
    if (is_late) return nullptr;
    if (made.ok()) return &Replace(header.key, {shard, std::move(*made)});
    status = made.status();
  } else if (copy == nullptr && there != nullptr) {
    return nullptr;  // from a server that is no longer in the chain
  } else if (copy == nullptr || !copy->IsNext(header)) {
    status = Status(Code::kCorrupt, "what goes to its copy has no beginning, or a gap");
  } else {
    status = copy->OnFrame(header, {payload, header.length});
    if (copy->holds() && !std::exchange(found->second.counted, true)) ++held_;
    if (status.ok()) return copy;
  }
  host_.FailCopy(header.key, status);
  return nullptr;
}

// What is behind it is no copy of this one.
CopiedKey& Copies::Replace(uint64_t key, Kept by) {
  Kept before = Remove(key);
  if (before.copy != nullptr && before.from != by.from) replaced_.push_back(std::move(before));
  const auto behind = successors_.find(key);
  if (behind != successors_.end() && behind->second.shard()) Discard(key, behind->second);
  return *(copies_[key] = std::move(by)).copy;
}

std::unordered_map<uint64_t, std::unique_ptr<StoreKey>> Copies::TakeSetAside() {
  std::unordered_map<uint64_t, std::unique_ptr<StoreKey>> taken;
  for (auto& [key, kept] : copies_)
    if (kept.copy->is_set_aside()) taken.emplace(key, kept.copy->TakeKey());
  return taken;
}

Copies::Kept Copies::Remove(uint64_t key) {
  auto node = copies_.extract(key);
  if (node.empty()) return {};
  held_ -= node.mapped().counted;
  return std::move(node.mapped());
}

void Copies::EndCopy(uint32_t shard, const Header& header) {
  const auto found = copies_.find(header.key);
  if (found != copies_.end() && found->second.from == shard) {
    Remove(header.key);
    Forget(header.key);
  }
  Confirm(shard, header.key, header.round);
}

// To the next in the chain, if there is to be one.
void Copies::PassOn(uint64_t key, CopiedKey& copy) {
  if (!copy.forwards()) {
    if (copy.begun_as().before.size() + 1 < copy.begun_as().copies) BeginBehind(key, copy);
    return;
  }
  for (CopyRecord& update : copy.TakeUpdates())
    if (Has(key)) Update(key, std::move(update));
}

void Copies::BeginBehind(uint64_t key, CopiedKey& copy) {
  std::vector<uint32_t> before = copy.begun_as().before;
  before.push_back(servers_[own_]);
  copy.Forward(true);
  Begin(key, copy.terms().home, before, [&](const std::vector<uint32_t>& servers) {
    WholeCopy about = copy.begun_as();
    about.before = servers;
    return SnapshotOf(copy.key(), std::move(about), memory_);
  });
}

// Once those behind it are as far.
void Copies::Confirm(uint32_t shard, uint64_t key, uint32_t number) {
  Header copied;
  copied.type = FrameType::kCopied;
  copied.key = key;
  copied.round = number;
  After(key, 0, [this, shard, copied] { host_.ConfirmCopy(shard, copied); });
}

size_t Copies::loose() const {
  const auto is_orphan = [this](const auto& one) { return lost_.contains(servers_[one.second.from]); };
  return static_cast<size_t>(std::ranges::count_if(copies_, is_orphan)) + ending_.size();
}

Status Copies::Missing() {
  return Status(Code::kPeerLost, "the server that had its value is gone, and there is no whole copy of it");
}

Result<std::unique_ptr<CopiedKey>> Copies::Take(uint64_t key) {
  const auto found = copies_.find(key);
  if (found == copies_.end() || !found->second.copy->holds()) return Missing();
  return std::move(Remove(key).copy);
}

}  // namespace byteps_like
