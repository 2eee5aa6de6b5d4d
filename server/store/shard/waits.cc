// Which ranks wait, for whom, and what an error says of it.
#include <algorithm>
#include <string>

#include "server/store/shard/store_entry.h"

namespace byteps_like {

bool ShardStore::HasWaiting() const {
  return !calls_.Waits().empty() || saving_.waits() || !copies_.LongestWaits().empty() ||
         std::ranges::any_of(keys_, [](const auto& one) {
           const Entry& entry = *one.second;
           return !entry.readers.empty() || !entry.openers.empty() || !entry.proposers.empty() || entry.held_since;
         });
}

std::vector<StoreWait> ShardStore::Waits() const {
  struct Longest {
    double since = 0;
    const Entry* of = nullptr;
    Awaited what{};
  };
  std::vector<Longest> longest(ranks_.size());
  const auto waits = [&](uint32_t rank, double since, const Entry& of, Awaited what) {
    if (ranks_[rank].left || (longest[rank].of != nullptr && longest[rank].since <= since)) return;
    longest[rank] = {since, &of, what};
  };
  for (const auto& [number, entry] : keys_) {
    for (const Opener& opener : entry->openers) waits(opener.rank, opener.since, *entry, Awaited::kValue);
    // Who has come early waits as long as the others still train.
    for (const Opener& opener : entry->proposers)
      waits(opener.rank, std::max(opener.since, contributed_), *entry, Awaited::kPolicy);
    for (const Reader& reader : entry->readers) waits(reader.rank, reader.since, *entry, Awaited::kReading);
    if (entry->held_since)
      for (const uint32_t rank : entry->key->Waiters()) waits(rank, *entry->held_since, *entry, Awaited::kVersion);
  }
  for (const ShardCalls::Wait& one : calls_.Waits())
    if (const auto key = keys_.find(one.key); key != keys_.end())
      waits(one.rank, one.since, *key->second, Awaited::kReading);
  std::vector<StoreWait> found = saving_.Waits(contributed_);
  for (uint32_t rank = 0; rank < longest.size(); ++rank)
    if (const Longest& one = longest[rank]; one.of != nullptr)
      found.push_back({rank, one.since, Described(*one.of, rank, one.what)});
  for (const auto& [key, wait] : copies_.LongestWaits())
    found.push_back({wait.rank, wait.since,
                     StoreKeyText(key) + ": " + RankText(wait.rank) + " waits until another server has a copy of it"});
  return found;
}

// Who waits for whom, and why.
std::string ShardStore::Described(const Entry& entry, uint32_t rank, Awaited what) const {
  const std::string key = StoreKeyText(entry.number);
  if (what == Awaited::kValue)
    return key + ": " + RankText(rank) + " waits for the first value, which " + RankText(entry.begun_by) + " is to set";
  if (what == Awaited::kPolicy) {
    std::string missing;
    for (const uint32_t other : MissingFor(entry)) missing += (missing.empty() ? "" : ", ") + std::to_string(other);
    return key + " (" + entry.spec->policy() + "): " + RankText(rank) + " waits until all ranks have changed it to " +
           entry.proposed->policy() + "; ranks that have not: " + missing;
  }
  const Ledger& ledger = entry.key->ledger();
  std::string clocks;
  for (const SourceState& source : ledger.sources())
    clocks += (clocks.empty() ? "" : ", ") + std::to_string(ledger.Clock(source.number)) +
              (source.live      ? ""
               : source.resting ? " (it waits for another policy)"
                                : " (it has left)");
  const bool reads = what == Awaited::kReading;
  return key + " (" + entry.spec->policy() + "): " + RankText(rank) + " waits " +
         (reads ? "to read" : "for more contributions, to make") + " version " +
         std::to_string(ledger.version() + (reads ? 0 : 1)) + (reads ? " or a later one" : "") +
         "; contributions that have come, by rank: " + clocks;
}

}  // namespace byteps_like
