// Keys that several servers have: what goes to the copies, what is said only once they have it, and copies whose turn
// it is.
#include <algorithm>
#include <utility>

#include "server/store/chain/snapshot.h"
#include "server/store/shard/store_entry.h"

namespace byteps_like {

KeyTerms ShardStore::TermsOf(const Entry& entry) const {
  return {.spec = entry.spec->text,
          .former = entry.former == nullptr ? "" : entry.former->text,
          .dtype = entry.dtype,
          .total = entry.total,
          .width = entry.width,
          .begun_by = entry.begun_by,
          .first = entry.first,
          .home = entry.home};
}

uint32_t ShardStore::ReplicasOf(const Entry& entry) const {
  return hands_over_ ? std::max(entry.spec->replicas, 2u) : entry.spec->replicas;
}

// There is to be a copy of it as it is now.
void ShardStore::CopyWhole(Entry& entry) {
  if (ReplicasOf(entry) < 2 || entry.key == nullptr) return;
  made_.clear();
  copies_.Begin(entry.number, entry.home, [&](const std::vector<uint32_t>& before) {
    WholeCopy about;
    about.terms = TermsOf(entry);
    about.before = before;
    about.copies = ReplicasOf(entry);
    about.sources.resize(ranks_.size());
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) about.sources[rank].forgotten = entry.forgotten[rank];
    return SnapshotOf(*entry.key, std::move(about), memory_);
  });
  entry.key->Record(copies_.Has(entry.number) ? &made_ : nullptr);
  if (entry.set_aside) copies_.SetAside(entry.number);
}

// Of the call under way.
void ShardStore::CopyChanges(Entry& entry) {
  if (ReplicasOf(entry) < 2 || !copies_.Has(entry.number)) return;
  std::vector<PushAnswer> settled;
  std::vector<int64_t> heard;
  for (const PushAnswer& answer : answers_) {
    if (answer.applied == Applied::kHeld) continue;
    settled.push_back(answer);
    heard.push_back(entry.key->FirstUnheard(answer.push.source));
  }
  auto made = std::exchange(made_, {});
  if (settled.empty() && made.empty()) return;
  copies_.Update(entry.number, RecordOf(entry.key->ledger().version(), settled, heard, std::move(made), entry.total));
}

// Not by another link: there the rank asks again.
std::function<void()> ShardStore::OnThisLink(uint32_t rank, std::function<void()> say) const {
  return [this, rank, links = ranks_[rank].links, say = std::move(say)] {
    if (ranks_[rank].links == links) say();
  };
}

void ShardStore::FailCopy(uint64_t key, const Status& why) {
  host_.FailStore(Status(why.code(), StoreKeyText(key) + ": " + why.message()));
}

size_t ShardStore::HandOver(uint64_t most) {
  hands_over_ = true;
  size_t lacking = copies_.loose() + saving_.restoring() + aside_.size();
  uint64_t under_way = 0;
  std::vector<Entry*> others;
  for (auto& [number, entry] : keys_) {
    if (entry->key == nullptr || copies_.HasCopy(number)) continue;
    ++lacking;
    if (copies_.Has(number)) {
      under_way += BytesOf(*entry);
    } else {
      others.push_back(entry.get());
    }
  }
  for (Entry* const entry : others) {
    if (under_way != 0 && under_way + BytesOf(*entry) > most) break;
    under_way += BytesOf(*entry);
    CopyWhole(*entry);
  }
  return lacking;
}

// That are copied to begin with.
uint64_t ShardStore::BytesOf(const Entry& entry) {
  return entry.of_rows() ? entry.key->rows().all_saved_bytes() : entry.total + entry.key->state().size();
}

void ShardStore::OnServerGone(uint32_t server) {
  host_.EndWaysTo(server);
  asks_.Lose(server);
  for (const uint64_t key : copies_.Lose(server))
    if (const auto found = keys_.find(key); found != keys_.end()) CopyWhole(*found->second);
}

// False: the job has failed.
bool ShardStore::LoseThoseWhoLeft(Entry& entry) {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].left && !Done(entry, entry.key->Lose(rank, host_.Now(), &answers_), rank)) return false;
  return true;
}

// Takes it over, if workers come with a key whose server is gone. False: the job has failed.
bool ShardStore::IsWhereItIs(uint32_t rank, const Header& header) {
  const auto found = keys_.find(header.key);
  if (found == keys_.end() && (header.round == kMoved || copies_.Keeps(header.key))) return TakeOver(rank, header);
  if (found == keys_.end() || header.round != kMoved || found->second->taken_over) return true;
  FailCopy(header.key, Copies::Missing());  // ranks that had not used it before have begun it anew
  return false;
}

bool ShardStore::TakeOver(uint32_t rank, const Header& header) {
  auto copy = copies_.Take(header.key);
  if (!copy.ok()) {
    FailCopy(header.key, copy.status());
    return false;
  }
  for (const uint32_t server : (*copy)->begun_as().before)
    OnServerGone(server);  // which is still writing to it, perhaps
  const KeyTerms& terms = (*copy)->terms();
  auto entry = std::make_unique<Entry>();
  entry->number = header.key;
  entry->spec = Announced(rank, header, terms.spec);
  entry->former = terms.former.empty() ? nullptr : Announced(rank, header, terms.former);
  entry->dtype = terms.dtype;
  entry->total = terms.total;
  entry->width = terms.width;
  entry->begun_by = terms.begun_by;
  entry->first = terms.first;
  entry->home = terms.home;
  entry->key = (*copy)->TakeKey();
  entry->taken_over = true;
  entry->set_aside = (*copy)->is_set_aside();
  Entry* const added = entry->spec == nullptr ? nullptr : Add(std::move(entry));
  if (added == nullptr) return false;
  for (uint32_t one = 0; one < ranks_.size(); ++one) added->forgotten[one] = (*copy)->begun_as().sources[one].forgotten;
  CopyWhole(*added);
  return added->set_aside || LoseThoseWhoLeft(*added);
}

}  // namespace byteps_like
