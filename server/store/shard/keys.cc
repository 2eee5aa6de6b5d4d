// Which keys there are, under which specs; when they begin, change and end, and who uses them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "server/store/shard/store_entry.h"

namespace byteps_like {
namespace {

constexpr uint32_t kMostSpecs = 1u << 12;  // of a link
constexpr size_t kMostSpecText = 1u << 10;
constexpr size_t kEntryBytes = 2048;  // of a key beside its value, its state, and what each rank brings

}  // namespace

ShardStore::ShardStore(StoreHost& host, ShardMemory& memory)
    : host_(host), memory_(memory), calls_(*this, memory), saving_(*this, memory), copies_(*this, memory) {}
ShardStore::~ShardStore() = default;

size_t ShardStore::EntryBytes() const {
  const size_t ranks = ranks_.size();
  return kEntryBytes + ranks * (sizeof(Arrival) + sizeof(IdLists) + sizeof(SourceState)) +
         KeyFigures::Bytes(static_cast<uint32_t>(ranks));
}

void ShardStore::Reset(World world) {
  KeepForNext();
  memory_.Refund(keys_.size() * EntryBytes());
  epoch_ = world.epoch;
  ranks_ = std::vector<Rank>(world.ranks);
  calls_.Reset(world.ranks);
  saving_.Reset(world.ranks);
  asks_.Reset(world.servers);
  copies_.Reset(world.ranks, std::move(world.servers), world.own);
  hands_over_ = false;
  keys_.clear();
  figures_.Clear();
  specs_.clear();
}

// What was set aside in the world that ends. If that was nothing, what was before is still there: the world may have
// ended before anybody had taken it.
void ShardStore::KeepForNext() {
  SetAside::Keys kept = copies_.TakeSetAside();
  for (auto& [number, entry] : keys_)
    if (entry->set_aside) kept.emplace(number, std::move(entry->key));
  if (!kept.empty()) aside_.Replace(epoch_, std::move(kept));
}

void ShardStore::Refuse(uint32_t rank, uint64_t key, const std::string& what) {
  host_.Refuse(rank, StoreKeyText(key) + ": " + what);
}

// Specs and keys

// nullptr: it is refused.
const ShardStore::Spec* ShardStore::SpecOf(uint32_t rank, const Header& header, std::string_view text) {
  auto& named = ranks_[rank].specs;
  if (header.aux >= kMostSpecs || text.size() > kMostSpecText || (text.empty() && header.aux >= named.size())) {
    Refuse(rank, header.key, "it has spec " + std::to_string(header.aux) + ", which this link has not announced");
    return nullptr;
  }
  if (!text.empty()) {
    if (named.size() <= header.aux) named.resize(header.aux + 1);
    named[header.aux] = Announced(rank, header, text);
  }
  return named[header.aux];
}

const ShardStore::Spec* ShardStore::Announced(uint32_t rank, const Header& header, std::string_view text) {
  const auto found = specs_.find(text);
  if (found != specs_.end()) return found->second.get();
  auto terms = ParseSpec(text);
  if (!terms.ok()) {
    host_.FailStore(Status(terms.status().code(),
                           StoreKeyText(header.key) + " of " + RankText(rank) + ": " + terms.status().message()));
    return nullptr;
  }
  auto spec = std::make_unique<Spec>(
      Spec{std::string(text), std::move(terms->rules), std::move(terms->filters), terms->replicas});
  return specs_.emplace(spec->text, std::move(spec)).first->second.get();
}

// nullptr: it is refused.
ShardStore::Entry* ShardStore::FindOrMake(uint32_t rank, const Header& header, const Spec& spec) {
  auto entry = std::make_unique<Entry>();
  entry->number = header.key;
  entry->spec = &spec;
  entry->dtype = header.dtype;
  entry->total = header.total;
  entry->width = header.offset;
  entry->begun_by = header.root;
  entry->home = copies_.own();
  entry->first = rank;
  const auto found = keys_.find(header.key);
  if (found != keys_.end() && found->second->IsLike(*entry)) return found->second.get();
  if (found != keys_.end()) {
    host_.FailStore(Status(Code::kMismatch, StoreKeyText(header.key) + ": the ranks disagree: " +
                                                found->second->Text() + "; " + entry->Text()));
    return nullptr;
  }
  const size_t count = header.total / SizeOf(header.dtype);
  const char* why = nullptr;
  if (count == 0 || header.total % SizeOf(header.dtype) != 0) {
    why = "it has no whole elements";
  } else if (entry->width == 0 || count % entry->width != 0) {
    why = "it has no whole rows";
  } else if (spec.of_rows() && (count != entry->width || header.root != kNoRank)) {
    why = "a table has the bytes of one row, and begins empty";
  } else if (header.root != kNoRank && header.root >= ranks_.size()) {
    why = "there is no such rank to set its value";
  }
  const Status filtered = spec.filters->Check(header.dtype);
  if (why == nullptr && !filtered.ok()) why = filtered.message().c_str();
  if (why != nullptr) {
    host_.FailStore(Status(Code::kInvalid, StoreKeyText(header.key) + ": " + entry->Text() + ": " + why));
    return nullptr;
  }
  return Add(std::move(entry));
}

// nullptr: there is no memory for it.
ShardStore::Entry* ShardStore::Add(std::unique_ptr<Entry> entry) {
  if (!memory_.Charge(EntryBytes())) {
    const Status full = memory_.Exhausted();
    host_.FailStore(Status(full.code(), StoreKeyText(entry->number) + ": " + full.message()));
    return nullptr;
  }
  entry->arrivals.resize(ranks_.size());
  entry->lists.resize(ranks_.size());
  entry->forgotten.resize(ranks_.size());
  entry->opened.resize(ranks_.size());
  const uint64_t number = entry->number;
  entry->figures = &figures_.Open(number, static_cast<uint32_t>(ranks_.size()));
  return keys_.emplace(number, std::move(entry)).first->second.get();
}

void ShardStore::OnSpec(uint32_t rank, const Header& header, std::string_view text) {
  const Spec* const spec = SpecOf(rank, header, text);
  if (spec != nullptr && header.round == kChanges) {
    const auto found = keys_.find(header.key);
    if (found == keys_.end() || found->second->key == nullptr)
      return Refuse(rank, header.key, "the policy of a key without a value can't be changed");
    return Propose(*found->second, rank, *spec);
  }
  if (spec != nullptr && !IsWhereItIs(rank, header)) return;
  Entry* const entry = spec == nullptr ? nullptr : FindOrMake(rank, header, *spec);
  if (entry == nullptr) return;
  entry->forgotten[rank] = false;
  const bool is_zeros = entry->begun_by == kNoRank || (rank == entry->begun_by && header.round == kIsZeros);
  if (entry->key == nullptr && is_zeros && !BeginAsZeros(*entry)) return;
  if (entry->key != nullptr || rank == entry->begun_by) return Open(*entry, rank);
  if (std::ranges::find(entry->openers, rank, &Opener::rank) == entry->openers.end())
    entry->openers.push_back({rank, host_.Now()});
}

void ShardStore::Open(Entry& entry, uint32_t rank) {
  Answer(entry, rank, entry.key == nullptr ? kLacksValue : kHasValue);
  if (entry.key == nullptr) return;
  entry.opened[rank] = true;
  const bool cut_off = entry.cut_off_at == entry.key->ledger().version();  // which a link before this may have lost
  if (cut_off && std::ranges::count(entry.key->ledger().CutOff(), rank) != 0) SayCutOff(entry, rank);
}

void ShardStore::Answer(const Entry& entry, uint32_t rank, Opened how) {
  Header answer;
  answer.type = FrameType::kOpened;
  answer.key = entry.number;
  answer.aux = how;
  if (how != kLacksValue) {
    answer.offset = static_cast<uint64_t>(entry.key->ledger().version());
    answer.round = static_cast<uint32_t>(entry.key->ledger().Clock(rank));
  }
  SayCopied(entry, rank, [this, rank, answer] { host_.Answer(rank, answer); });
}

// This rank wants another policy, which is in force once all ranks have said so. Until then it makes no contributions,
// so nobody waits for any of it.
void ShardStore::Propose(Entry& entry, uint32_t rank, const Spec& spec) {
  if (&spec == entry.spec) return Answer(entry, rank, kChanged);  // it has missed the answer: its link had broken
  const Spec& other = entry.proposed != nullptr ? *entry.proposed : *entry.spec;
  if (!spec.IsVariantOf(other) || (entry.proposed != nullptr && entry.proposed != &spec)) {
    const uint32_t first = entry.proposers.empty() ? entry.first : entry.proposers.front().rank;
    return host_.FailStore(Status(Code::kMismatch, StoreKeyText(entry.number) +
                                                       ": the ranks disagree: " + RankText(first) + " wants " +
                                                       other.text + "; " + RankText(rank) + " wants " + spec.text));
  }
  entry.proposed = &spec;
  if (std::ranges::find(entry.proposers, rank, &Opener::rank) != entry.proposers.end()) return;
  entry.proposers.push_back({rank, host_.Now()});
  if (MissingFor(entry).empty()) {
    ChangeIfAgreed(entry, rank);
  } else {
    Done(entry, entry.key->Rest(rank, host_.Now(), &answers_), rank);
  }
}

// Ranks that have not asked for the other policy.
std::vector<uint32_t> ShardStore::MissingFor(const Entry& entry) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank].left && std::ranges::find(entry.proposers, rank, &Opener::rank) == entry.proposers.end())
      missing.push_back(rank);
  return missing;
}

// `by`: who has asked for it last, or has left. False: the job has failed.
bool ShardStore::ChangeIfAgreed(Entry& entry, uint32_t by) {
  if (entry.proposed == nullptr || entry.set_aside || !MissingFor(entry).empty()) return true;
  entry.former = std::exchange(entry.spec, std::exchange(entry.proposed, nullptr));
  for (const Opener& one : entry.proposers)
    if (entry.key->ledger().source(one.rank).resting) entry.key->Wake(one.rank);
  if (!Done(entry, entry.key->Change(entry.spec->rules, host_.Now(), &answers_), by)) return false;
  CopyWhole(entry);
  for (const Opener& one : std::exchange(entry.proposers, {})) {
    if (ranks_[one.rank].left) continue;
    if (one.rank != by) HasWaited(entry, one.rank, Awaited::kPolicy, one.since, by);
    Answer(entry, one.rank, kChanged);
  }
  return true;
}

// False: the job has failed.
bool ShardStore::BeginAsZeros(Entry& entry) {
  const auto sources = static_cast<uint32_t>(ranks_.size());
  if (entry.of_rows())
    return Begin(entry,
                 StoreKey::Make(entry.spec->rules, StoreRows{entry.dtype, entry.width}, sources, host_.Now(), memory_));
  ShardBuffer zeros = Take(entry, entry.total);
  if (zeros.size() == 0) return false;
  std::memset(zeros.data(), 0, entry.total);
  return Begin(entry, KeyOf(entry, std::move(zeros)));
}

Result<std::unique_ptr<StoreKey>> ShardStore::KeyOf(const Entry& entry, ShardBuffer value) {
  const size_t count = entry.total / SizeOf(entry.dtype);
  StoreValue first{entry.dtype, {count / entry.width, entry.width}, std::move(value)};
  return StoreKey::Make(entry.spec->rules, std::move(first), static_cast<uint32_t>(ranks_.size()), host_.Now(),
                        memory_);
}

// Its first value is there. False: the job has failed.
bool ShardStore::Begin(Entry& entry, Result<std::unique_ptr<StoreKey>> key) {
  if (!Done(entry, key.status())) return false;
  entry.key = std::move(*key);
  CopyWhole(entry);
  if (!LoseThoseWhoLeft(entry)) return false;
  for (const Opener& opener : std::exchange(entry.openers, {})) {
    HasWaited(entry, opener.rank, Awaited::kValue, opener.since, entry.begun_by);
    Open(entry, opener.rank);
  }
  return true;
}

// Empty: the job has failed, unless nothing was wanted.
ShardBuffer ShardStore::Take(const Entry& entry, size_t bytes) {
  ShardBuffer buffer = memory_.Take(bytes);
  if (bytes != 0 && buffer.size() == 0) {
    const Status full = memory_.Exhausted();
    host_.FailStore(Status(full.code(), StoreKeyText(entry.number) + ": " + full.message()));
  }
  return buffer;
}

// This rank is done with the key for ever; when all are, it is freed.
void ShardStore::OnForget(uint32_t rank, const Header& header) {
  keys_.at(header.key)->forgotten[rank] = true;
  keys_.at(header.key)->opened[rank] = false;
  FreeIfForgotten(header.key);
}

// Not while the link of a rank may write to its memory: there is half a contribution, and that rank may go on with it.
void ShardStore::FreeIfForgotten(uint64_t key) {
  const auto found = keys_.find(key);
  const Entry& entry = *found->second;
  if (entry.set_aside) return;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank].left && (!entry.forgotten[rank] || entry.arrivals[rank].begun)) return;
  memory_.Refund(EntryBytes());
  keys_.erase(found);
  figures_.Close(key);
  copies_.Forget(key);
  calls_.OnChange(key);  // one that waits for it ends
  saving_.OnFreed(key);
}

void ShardStore::OnLeft(uint32_t rank) {
  OnLinkGone(rank);
  ranks_[rank].left = true;
  std::vector<uint64_t> numbers;
  for (auto& [number, entry] : keys_) {
    numbers.push_back(number);
    entry->arrivals[rank] = {};
    const bool changes = entry->key != nullptr && !entry->set_aside;
    if (changes && !Done(*entry, entry->key->Lose(rank, host_.Now(), &answers_), rank)) return;
    if (!ChangeIfAgreed(*entry, rank)) return;
  }
  saving_.OnLeft(rank);
  for (const uint64_t number : numbers) FreeIfForgotten(number);
}

void ShardStore::OnLinkGone(uint32_t rank) {
  if (rank >= ranks_.size()) return;
  const uint64_t links = ranks_[rank].links + 1;
  ranks_[rank] = {.specs = {}, .sendings = {}, .under_way = {}, .left = ranks_[rank].left, .links = links};
  calls_.OnLinkGone(rank);
  saving_.OnLinkGone(rank);
  for (auto& [number, entry] : keys_) {
    entry->lists[rank].Clear();
    entry->opened[rank] = false;
    entry->arrivals[rank].nacked.reset();
    std::erase_if(entry->readers, [rank](const Reader& reader) { return reader.rank == rank; });
    std::erase_if(entry->openers, [rank](const Opener& opener) { return opener.rank == rank; });
    // It will ask again.
    std::erase_if(entry->proposers, [rank](const Opener& opener) { return opener.rank == rank; });
    if (entry->key != nullptr && entry->key->ledger().source(rank).resting) entry->key->Wake(rank);
    if (entry->proposers.empty()) entry->proposed = nullptr;
  }
}

}  // namespace byteps_like
