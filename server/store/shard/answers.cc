// What has become of contributions: said, counted and timed.
#include <algorithm>
#include <utility>

#include "server/store/shard/store_entry.h"

namespace byteps_like {

// After a call to the key, which rank `by` has caused: tells what it has brought about. False: it has failed, and with
// it the job.
bool ShardStore::Done(Entry& entry, const Status& status, uint32_t by) {
  CopyChanges(entry);
  for (const PushAnswer& answer : answers_) {
    Count(entry, answer, by);
    if (answer.applied == Applied::kHeld) {
      Say(entry.number, answer);
    } else {
      SayCopied(entry, answer.push.source, [this, number = entry.number, answer] { Say(number, answer); });
    }
  }
  answers_.clear();
  if (!status.ok()) {
    host_.FailStore(Status(status.code(), StoreKeyText(entry.number) + ": " + status.message()));
    return false;
  }
  if (entry.key == nullptr) return true;
  Serve(entry, by);
  TimeHeld(entry);
  if (const auto at = entry.key->ReadyAt()) {
    host_.CallStoreAt(*at);
    CutOff(entry);
  }
  calls_.OnChange(entry.number);
  return true;
}

// What is said of a contribution for the first time.
void ShardStore::Count(Entry& entry, const PushAnswer& answer, uint32_t by) {
  const StorePush& push = answer.push;
  if (answer.applied == Applied::kHeld) return entry.figures->Hold(push.source);
  entry.figures->Settle(push.source, answer.applied, static_cast<uint64_t>(answer.version - 1 - push.base));
  if (answer.applied != Applied::kCounted && Tracing())
    host_.Record({.kind = TraceKind::kLeftOut,
                  .detail = static_cast<uint8_t>(answer.applied),
                  .begin = TraceClock(),
                  .key = entry.number,
                  .round = static_cast<uint32_t>(push.clock),
                  .peer = push.source});
  const auto found = std::ranges::find_if(
      entry.pending, [&](const Pending& one) { return one.rank == push.source && one.clock == push.clock; });
  if (found == entry.pending.end()) return;
  HasWaited(entry, found->rank, Awaited::kVersion, found->since, by);
  entry.pending.erase(found);
}

void ShardStore::HasWaited(const Entry& entry, uint32_t rank, Awaited what, double since, uint32_t whom) {
  const double seconds = host_.Now() - since;
  entry.figures->Wait(rank, what, seconds, whom);
  if (!Tracing()) return;
  const auto duration = static_cast<int64_t>(seconds * 1e9);
  host_.Record({.kind = TraceKind::kHeldUp,
                .detail = static_cast<uint8_t>(what),
                .begin = TraceClock() - duration,
                .duration = duration,
                .key = entry.number,
                .round = entry.key == nullptr ? 0 : static_cast<uint32_t>(entry.key->ledger().version()),
                .peer = rank,
                .step = whom});
}

void ShardStore::TimeHeld(Entry& entry) {
  const int64_t version = entry.key->ledger().version();
  if (!entry.key->Waiting() || entry.spec->rules->policy->LeavesSome()) {
    entry.held_since.reset();
  } else if (!entry.held_since || entry.held_at != version) {
    entry.held_since = host_.Now();
    entry.held_at = version;
  }
}

void ShardStore::Say(uint64_t key, const PushAnswer& answer) {
  Header header;
  header.type = FrameType::kApplied;
  header.key = key;
  header.round = static_cast<uint32_t>(answer.push.clock);
  header.offset = static_cast<uint64_t>(answer.version);
  header.aux = static_cast<uint32_t>(answer.applied);
  header.total = answer.push.bytes;
  host_.Answer(answer.push.source, header, answer.several == nullptr ? "" : EncodeRanks(*answer.several));
}

// Tells the ranks that the next version is about to be made without, once for each version, where they may have blocks
// to send: of values, not of tables, and not of what is coded as a whole.
void ShardStore::CutOff(Entry& entry) {
  const Ledger& ledger = entry.key->ledger();
  const bool blocks = !entry.of_rows() && entry.spec->rules->combining->TakesBlocks();
  if (!blocks || entry.cut_off_at == ledger.version()) return;
  for (const uint32_t rank : ledger.CutOff()) {
    entry.cut_off_at = ledger.version();
    if (entry.opened[rank]) SayCutOff(entry, rank);
  }
}

void ShardStore::SayCutOff(const Entry& entry, uint32_t rank) {
  Header header;
  header.type = FrameType::kCutoff;
  header.key = entry.number;
  header.round = static_cast<uint32_t>(entry.key->ledger().Clock(rank));
  header.offset = static_cast<uint64_t>(entry.key->ledger().version());
  host_.Answer(rank, header);
}

void ShardStore::PassTime() {
  for (auto& [number, entry] : keys_)
    if (entry->key != nullptr && !entry->set_aside && !Done(*entry, entry->key->PassTime(host_.Now(), &answers_)))
      return;
}

}  // namespace byteps_like
