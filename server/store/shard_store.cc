#include "server/store/shard_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <queue>
#include <utility>

#include "csrc/wire/note.h"
#include "server/store/filters/filters.h"
#include "server/store/lists.h"

namespace byteps_like {

namespace {

constexpr uint32_t kMostSpecs = 1u << 12;  // of a link
constexpr size_t kMostSpecText = 1u << 10;
constexpr size_t kMostReads = 1u << 16;      // that a rank may wait for, or leave unread
constexpr int64_t kMostUnheard = 1 << 16;    // contributions of a rank to a key whose answers it has not confirmed
constexpr uint32_t kMostUnheardRows = 1024;  // the same, to a table, where nobody confirms
constexpr size_t kEntryBytes = 2048;         // of a key beside its value, its state, and what each rank brings
constexpr std::array<std::string_view, 3> kLines = {"policy ", "combine ", "update "};
constexpr std::string_view kOfRows = "\nrows zeros";  // the last line, of tables
constexpr std::string_view kFiltered = "\nfilters ";  // a line before it, of those that have some

std::string RankText(uint32_t rank) { return "rank " + std::to_string(rank); }
std::string StoreKeyText(uint64_t key) { return "store key " + std::to_string(key); }

// What a spec's text says: three lines, and those that tables have.
struct Terms {
  std::shared_ptr<const StoreRules> rules;
  std::shared_ptr<const Filters> filters;
};

Result<Terms> ParseSpec(std::string_view text) {
  const bool of_rows = text.ends_with(kOfRows);
  if (of_rows) text.remove_suffix(kOfRows.size());
  const size_t filtered = std::min(text.find(kFiltered), text.size());
  auto filters = Filters::Parse(filtered == text.size() ? "" : text.substr(filtered + kFiltered.size()));
  if (!filters.ok()) return filters.status();
  if (!of_rows && !(*filters)->empty()) return Status(Code::kInvalid, "only rows of tables can be filtered");
  text = text.substr(0, filtered);
  std::array<std::string_view, kLines.size()> values;
  for (size_t line = 0; line < kLines.size(); ++line) {
    const size_t end = line + 1 < kLines.size() ? text.find('\n') : text.size();
    if (!text.starts_with(kLines[line]) || end == text.npos)
      return Status(Code::kInvalid, "its spec has no line \"" + std::string(kLines[line]) + "…\"");
    values[line] = text.substr(kLines[line].size(), end - kLines[line].size());
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  auto rules = StoreRules::Parse(values[0], values[1], values[2]);
  if (!rules.ok()) return rules.status();
  return Terms{std::move(*rules), std::move(*filters)};
}

}  // namespace

struct ShardStore::Spec {
  bool of_rows() const { return text.ends_with(kOfRows); }
  std::string policy() const { return text.substr(kLines[0].size(), text.find('\n') - kLines[0].size()); }
  // All but the policy is the same.
  bool IsVariantOf(const Spec& other) const {
    return std::string_view(text).substr(text.find('\n')) == std::string_view(other.text).substr(other.text.find('\n'));
  }

  std::string text;
  std::shared_ptr<const StoreRules> rules;
  std::shared_ptr<const Filters> filters;
};

// A rank that wants the value, and waits until it may have it.
struct ShardStore::Reader {
  uint32_t rank = 0;
  FrameType type = FrameType::kValue;  // or kResult, after a contribution
  uint32_t round = 0;                  // as the rank's frame had it
  int64_t clock = 0;                   // contributions that must be here, or settled, before
  int64_t least = 0;                   // version
  std::optional<uint32_t> known;       // version that it has
  uint32_t begin = 0, end = 0;         // bytes
  int32_t priority = 0;
  double since = 0;
  std::optional<double> held_up = {};  // since when others keep it waiting: its own contributions are there
  std::optional<Fetch> fetch = {};     // of a table
};

// A contribution, or a first value, that comes in segments.
struct ShardStore::Arrival {
  bool begun = false;
  uint32_t round = 0;
  uint32_t total = 0;    // bytes
  uint32_t counted = 0;  // of these
  uint32_t heard = 0;    // its sender knows what became of those before
  bool silent = false;
  bool idle = false;  // its source brings nothing
  int32_t priority = 0;
  Note note;
  ShardBuffer buffer;
  std::shared_ptr<const IdList> list;  // of which it has rows
  std::optional<uint32_t> nacked;      // whose list was not there: nothing counts before its first segment comes again
};

struct ShardStore::Sending {
  int32_t priority = 0;
  uint64_t order = 0;
  Header header;  // whose offset moves on
  std::shared_ptr<const ShardBuffer> value;
  bool operator<(const Sending& other) const {
    return priority != other.priority ? priority < other.priority : order > other.order;
  }
};

// A contribution that was not settled when it came.
struct ShardStore::Pending {
  uint32_t rank = 0;
  int64_t clock = 0;
  double since = 0;
};

// A rank that waits for a first value, or for another policy.
struct ShardStore::Opener {
  uint32_t rank = 0;
  double since = 0;
};

struct ShardStore::Entry {
  // The policy may be the one before, on whose change a rank has no answer yet.
  bool IsLike(const Entry& other) const {
    return (spec == other.spec || former == other.spec) && dtype == other.dtype && total == other.total &&
           width == other.width && begun_by == other.begun_by;
  }
  std::string Text() const {
    const std::string begins = begun_by == kNoRank ? "zeros" : "the value of " + RankText(begun_by);
    return RankText(first) + " has " + std::to_string(total) + " bytes of " + NameOf(dtype) + " in rows of " +
           std::to_string(width) + ", from " + begins + ", " + spec->text;
  }

  bool of_rows() const { return spec->of_rows(); }

  uint64_t number = 0;
  const Spec* spec = nullptr;
  const Spec* former = nullptr;    // before the policy was changed
  const Spec* proposed = nullptr;  // by ranks that wait until all others have done so
  std::vector<Opener> proposers;
  DType dtype{};
  uint32_t total = 0;           // bytes of the value; of a table, of a row
  uint64_t width = 0;           // elements of a row
  uint32_t begun_by = kNoRank;  // sets the first value
  uint32_t first = 0;           // rank that has named it first
  std::vector<Opener> openers;
  std::unique_ptr<StoreKey> key;  // nullptr: it has no value yet
  std::vector<Arrival> arrivals;  // by rank
  std::vector<IdLists> lists;     // by rank, of its link
  std::vector<Reader> readers;
  std::vector<Pending> pending;
  KeyFigures* figures = nullptr;
  std::vector<bool> forgotten;  // by rank
  // Since when contributions have been here that no version was made of, nor of others meanwhile.
  std::optional<double> held_since;
  int64_t held_at = 0;  // that version
};

struct ShardStore::Rank {
  std::vector<const Spec*> specs;  // as its link has numbered them
  std::priority_queue<Sending> sendings;
  std::deque<std::shared_ptr<const ShardBuffer>> under_way;  // of each frame
  bool left = false;
};

ShardStore::ShardStore(StoreHost& host, ShardMemory& memory)
    : host_(host), memory_(memory), calls_(*this, memory), saving_(*this, memory) {}
ShardStore::~ShardStore() = default;

size_t ShardStore::EntryBytes() const {
  const size_t ranks = ranks_.size();
  return kEntryBytes + ranks * (sizeof(Arrival) + sizeof(IdLists) + sizeof(SourceState)) +
         KeyFigures::Bytes(static_cast<uint32_t>(ranks));
}

void ShardStore::Reset(uint32_t ranks) {
  memory_.Refund(keys_.size() * EntryBytes());
  ranks_ = std::vector<Rank>(ranks);
  calls_.Reset(ranks);
  saving_.Reset(ranks);
  keys_.clear();
  figures_.Clear();
  specs_.clear();
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
  auto spec = std::make_unique<Spec>(Spec{std::string(text), std::move(terms->rules), std::move(terms->filters)});
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
  if (!memory_.Charge(EntryBytes())) {
    const Status full = memory_.Exhausted();
    host_.FailStore(Status(full.code(), StoreKeyText(header.key) + ": " + full.message()));
    return nullptr;
  }
  entry->arrivals.resize(ranks_.size());
  entry->lists.resize(ranks_.size());
  entry->forgotten.resize(ranks_.size());
  entry->figures = &figures_.Open(header.key, static_cast<uint32_t>(ranks_.size()));
  return keys_.emplace(header.key, std::move(entry)).first->second.get();
}

void ShardStore::OnSpec(uint32_t rank, const Header& header, std::string_view text) {
  const Spec* const spec = SpecOf(rank, header, text);
  if (spec != nullptr && header.round == kChanges) {
    const auto found = keys_.find(header.key);
    if (found == keys_.end() || found->second->key == nullptr)
      return Refuse(rank, header.key, "the policy of a key without a value can't be changed");
    return Propose(*found->second, rank, *spec);
  }
  Entry* const entry = spec == nullptr ? nullptr : FindOrMake(rank, header, *spec);
  if (entry == nullptr) return;
  entry->forgotten[rank] = false;
  if (entry->key == nullptr && entry->begun_by == kNoRank && !BeginAsZeros(*entry)) return;
  if (entry->key != nullptr || rank == entry->begun_by) return Open(*entry, rank);
  if (std::ranges::find(entry->openers, rank, &Opener::rank) == entry->openers.end())
    entry->openers.push_back({rank, host_.Now()});
}

void ShardStore::Open(const Entry& entry, uint32_t rank) {
  Answer(entry, rank, entry.key == nullptr ? kLacksValue : kHasValue);
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
  host_.Answer(rank, answer);
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
  if (entry.proposed == nullptr || !MissingFor(entry).empty()) return true;
  entry.former = std::exchange(entry.spec, std::exchange(entry.proposed, nullptr));
  for (const Opener& one : entry.proposers)
    if (entry.key->ledger().source(one.rank).resting) entry.key->Wake(one.rank);
  if (!Done(entry, entry.key->Change(entry.spec->rules, host_.Now(), &answers_), by)) return false;
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
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].left && !Done(entry, entry.key->Lose(rank, host_.Now(), &answers_))) return false;
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

// Contributions in

// What the frame's bytes belong to, with memory for them; nullptr: they are refused.
ShardStore::Arrival* ShardStore::ArrivalOf(Entry& entry, uint32_t rank, const Header& header) {
  Arrival& arrival = entry.arrivals[rank];
  const bool goes_on = arrival.begun && arrival.round == header.round;
  if ((header.flags & kNoted) == 0 && !goes_on) {
    Refuse(rank, entry.number, "a contribution begins without its first segment");
    return nullptr;
  }
  if (goes_on || BeginArrival(entry, arrival, header)) return &arrival;
  return nullptr;
}

// In the memory of one that was not finished, if there is one.
bool ShardStore::BeginArrival(const Entry& entry, Arrival& arrival, const Header& header) {
  const bool fits = arrival.buffer.size() != 0 && arrival.buffer.size() >= header.total;
  ShardBuffer buffer = fits ? std::move(arrival.buffer) : Take(entry, header.total);
  if (buffer.size() < header.total) return false;
  auto list = std::move(arrival.list);
  arrival = {};
  arrival.list = std::move(list);
  arrival.begun = true;
  arrival.round = header.round;
  arrival.total = header.total;
  arrival.heard = entry.of_rows() ? header.round - std::min(header.round, kMostUnheardRows) : header.aux;
  arrival.silent = (header.flags & kSilent) != 0;
  arrival.idle = header.type == FrameType::kClock;
  arrival.priority = header.priority;
  arrival.buffer = std::move(buffer);
  return true;
}

// A first segment is copied: the note is before it.
std::byte* ShardStore::PlaceFor(uint32_t rank, const Header& header) {
  const Arrival& arrival = keys_.at(header.key)->arrivals[rank];
  if ((header.flags & kNoted) != 0 || !arrival.begun || arrival.round != header.round) return nullptr;
  if (header.total != arrival.total || header.offset != arrival.counted || arrival.nacked) return nullptr;
  return arrival.buffer.data() + header.offset;
}

void ShardStore::OnPush(uint32_t rank, const Header& header, const std::byte* payload) {
  Entry& entry = *keys_.at(header.key);
  if (header.total != entry.total || header.dtype != entry.dtype || entry.of_rows())
    return Refuse(rank, entry.number, "a contribution has another length or type than its spec");
  if (HasCome(entry, rank, header)) return Repeat(entry, rank, header, payload);
  Land(entry, rank, header, payload);
}

void ShardStore::OnClock(uint32_t rank, const Header& header, const std::byte* payload) {
  Entry& entry = *keys_.at(header.key);
  if (entry.key == nullptr || (header.flags & kSilent) == 0)
    return Refuse(rank, entry.number, "a clock for what has no value yet, or not silent");
  if (HasCome(entry, rank, header)) return Repeat(entry, rank, header, payload);
  if (!entry.arrivals[rank].nacked) Land(entry, rank, header, payload);  // else it comes again, behind that one
}

bool ShardStore::HasCome(const Entry& entry, uint32_t rank, const Header& header) const {
  return entry.key != nullptr && int32_t(header.round - uint32_t(entry.key->ledger().Clock(rank))) < 0;
}

// A segment of one that is not whole yet.
void ShardStore::Land(Entry& entry, uint32_t rank, const Header& header, const std::byte* payload) {
  Arrival* const arrival = ArrivalOf(entry, rank, header);
  if (arrival == nullptr) return;
  const bool noted = (header.flags & kNoted) != 0;
  if (noted) {
    auto note = DecodeNote(std::span<const std::byte, kNoteBytes>(payload, kNoteBytes));
    if (!note.ok()) return Refuse(rank, entry.number, note.status().message());
    arrival->note = *note;
  }
  const uint32_t bytes = header.length - (noted ? kNoteBytes : 0);
  const auto end = static_cast<uint32_t>(header.offset) + bytes;
  const size_t element = entry.spec->filters->empty() ? SizeOf(entry.dtype) : 1;
  if (header.offset > arrival->counted || header.offset % element != 0 || bytes % element != 0)
    return Refuse(rank, entry.number, "a segment is out of order or splits an element");
  std::byte* const place = arrival->buffer.data() + header.offset;
  const std::byte* const from = payload + (noted ? kNoteBytes : 0);
  if (end > arrival->counted && from != place) std::memcpy(place, from, bytes);
  arrival->counted = std::max(arrival->counted, end);
  if (arrival->counted == arrival->total) Finish(entry, rank, std::exchange(*arrival, {}));
}

// It is whole.
void ShardStore::Finish(Entry& entry, uint32_t rank, Arrival arrival) {
  const bool initial = (arrival.note.bits & kInitial) != 0;
  const char* why = nullptr;
  if (arrival.note.source != 0 || arrival.note.after != 0) {
    why = "a note asks for what this server can't do";
  } else if (initial != (entry.key == nullptr)) {
    why = initial ? "it has a value already" : "it has no value yet";
  } else if (initial && rank != entry.begun_by) {
    why = "another rank is to set its value";
  }
  if (why != nullptr) return Refuse(rank, entry.number, why);
  if (!initial) return Contribute(entry, rank, std::move(arrival));
  Begin(entry, KeyOf(entry, std::move(arrival.buffer)));
}

void ShardStore::Contribute(Entry& entry, uint32_t rank, Arrival arrival) {
  const int64_t clock = entry.key->ledger().Clock(rank);
  if (arrival.round != static_cast<uint32_t>(clock))
    return Refuse(
        rank, entry.number,
        "contribution " + std::to_string(arrival.round) + " has come after " + std::to_string(clock) + " others");
  const auto unheard = static_cast<uint32_t>(clock) - arrival.heard;
  if (unheard > static_cast<uint64_t>(clock))
    return Refuse(rank, entry.number, "it has heard of contributions that it has not made");
  if (unheard > kMostUnheard) return Refuse(rank, entry.number, "it doesn't confirm what it hears");
  entry.key->Heard(rank, clock - unheard);
  if (!arrival.silent)
    entry.readers.push_back({.rank = rank,
                             .type = FrameType::kResult,
                             .round = arrival.round,
                             .clock = clock + 1,
                             .known = {},
                             .end = entry.total,
                             .priority = arrival.priority,
                             .since = host_.Now()});
  contributed_ = host_.Now();
  if (!Decode(entry, rank, arrival)) return;
  const Note& note = arrival.note;
  const auto lr = std::isnan(note.lr) ? std::nullopt : std::optional<double>(note.lr);
  WholePush whole{{rank, clock, note.base, note.weight, note.loss, arrival.total, arrival.idle},
                  std::move(arrival.buffer),
                  lr,
                  {std::move(arrival.list), {}}};
  if (!Done(entry, entry.key->Push(std::move(whole), host_.Now(), &answers_), rank)) return;
  if (entry.key->ledger().source(rank).clock <= clock) entry.pending.push_back({rank, clock, contributed_});
}

// Makes rows of what filters have made of them. False: the job has failed.
bool ShardStore::Decode(const Entry& entry, uint32_t rank, Arrival& arrival) {
  const Filters& filters = *entry.spec->filters;
  if (filters.empty() || arrival.idle) return true;
  auto rows = filters.Decode(entry.dtype, {std::move(arrival.buffer), arrival.total}, arrival.list->count * entry.total,
                             memory_);
  if (rows.status().code() == Code::kCorrupt) {
    Refuse(rank, entry.number, "contribution " + std::to_string(arrival.round) + ": " + rows.status().message());
    return false;
  }
  if (!rows.ok()) {
    host_.FailStore(Status(rows.status().code(), StoreKeyText(entry.number) + ": " + rows.status().message()));
    return false;
  }
  arrival.buffer = std::move(rows->buffer);
  return true;
}

// The server has it: its sender may not have heard what became of it.
void ShardStore::Repeat(Entry& entry, uint32_t rank, const Header& header, const std::byte* payload) {
  if ((header.flags & kNoted) == 0) return;
  auto note = DecodeNote(std::span<const std::byte, kNoteBytes>(payload, kNoteBytes));
  if (!note.ok()) return Refuse(rank, entry.number, note.status().message());
  const int64_t next = entry.key->ledger().Clock(rank);
  const int64_t clock = next - static_cast<uint32_t>(static_cast<uint32_t>(next) - header.round);
  const Status status =
      entry.key->Push({{rank, clock, note->base, note->weight}, {}, std::nullopt}, host_.Now(), &answers_);
  for (const PushAnswer& answer : std::exchange(answers_, {})) Say(entry, answer);  // which has been counted
  Done(entry, status);
}

// Tables

void ShardStore::OnKeys(uint32_t rank, const Header& header, const std::byte* payload) {
  Entry& entry = *keys_.at(header.key);
  if (!entry.of_rows()) return Refuse(rank, entry.number, "ids for a key that has no rows");
  const Status status = entry.lists[rank].Add(header, payload, memory_);
  if (status.code() == Code::kCorrupt) return Refuse(rank, entry.number, status.message());
  if (!status.ok()) host_.FailStore(Status(status.code(), StoreKeyText(entry.number) + ": " + status.message()));
}

void ShardStore::OnRows(uint32_t rank, const Header& header, const std::byte* payload) {
  Entry& entry = *keys_.at(header.key);
  if (!entry.of_rows() || header.dtype != entry.dtype || (header.flags & kSilent) == 0)
    return Refuse(rank, entry.number, "rows for a key that has none, of another type than its spec, or not silent");
  if (HasCome(entry, rank, header)) return Repeat(entry, rank, header, payload);
  if (Knows(entry, rank, header)) Land(entry, rank, header, payload);
}

// Whether the list of its rows is here: of a first segment, on this link. False, too, where that is refused.
bool ShardStore::Knows(Entry& entry, uint32_t rank, const Header& header) {
  Arrival& arrival = entry.arrivals[rank];
  const bool noted = (header.flags & kNoted) != 0;
  if (arrival.nacked && (!noted || arrival.nacked != header.round)) return false;
  const bool goes_on = arrival.begun && arrival.list->crc == header.root && arrival.total == header.total;
  if (!noted) {
    if (arrival.begun && !goes_on)
      Refuse(rank, entry.number, "a contribution goes on with another list than it began with");
    return goes_on || !arrival.begun;
  }
  auto list = entry.lists[rank].Find(header.aux, header.root);
  arrival.begun = goes_on && list != nullptr;
  if (list == nullptr) {
    arrival.nacked = header.round;
    Nack(header, rank, kNackedRows);
    return false;
  }
  if (!entry.spec->filters->Fits(entry.dtype, list->count * entry.total, header.total)) {
    Refuse(rank, entry.number, "a contribution has more or fewer rows than its list has ids");
    return false;
  }
  arrival.nacked.reset();
  arrival.list = std::move(list);
  return true;
}

void ShardStore::Nack(const Header& header, uint32_t rank, Nacked what) {
  Header nack;
  nack.type = FrameType::kNack;
  nack.key = header.key;
  nack.round = header.round;
  nack.aux = header.aux;
  nack.root = header.root;
  nack.total = what;
  nack.offset = what == kNackedFetch ? header.total : 0;
  host_.Answer(rank, nack);
}

void ShardStore::OnFetch(uint32_t rank, const Header& header, const std::byte* payload) {
  Entry& entry = *keys_.at(header.key);
  if (!entry.of_rows()) return Refuse(rank, entry.number, "it asks for rows of a key that has none");
  if (entry.readers.size() + ranks_[rank].sendings.size() >= kMostReads)
    return Refuse(rank, entry.number, "it asks for more values than it reads");
  auto list = header.aux == kRange ? nullptr : entry.lists[rank].Find(header.aux, header.root);
  if (list == nullptr && header.aux != kRange) return Nack(header, rank, kNackedFetch);
  auto fetch = Fetch::From(header, payload, std::move(list), memory_);
  if (fetch.status().code() == Code::kCorrupt) return Refuse(rank, entry.number, fetch.status().message());
  if (!fetch.ok()) {
    const Status& why = fetch.status();
    return host_.FailStore(Status(why.code(), StoreKeyText(entry.number) + ": " + why.message()));
  }
  entry.readers.push_back({.rank = rank,
                           .round = header.round,
                           .clock = header.round,
                           .known = {},
                           .priority = header.priority,
                           .since = host_.Now(),
                           .fetch = std::move(*fetch)});
  Serve(entry);
}

// This rank is done with the key for ever; when all are, it is freed.
void ShardStore::OnForget(uint32_t rank, const Header& header) {
  keys_.at(header.key)->forgotten[rank] = true;
  FreeIfForgotten(header.key);
}

// Not while the link of a rank may write to its memory: there is half a contribution, and that rank may go on with it.
void ShardStore::FreeIfForgotten(uint64_t key) {
  const auto found = keys_.find(key);
  const Entry& entry = *found->second;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank].left && (!entry.forgotten[rank] || entry.arrivals[rank].begun)) return;
  memory_.Refund(EntryBytes());
  keys_.erase(found);
  figures_.Close(key);
  calls_.OnChange(key);  // one that waits for it ends
  saving_.OnFreed(key);
}

void ShardStore::OnResume(uint32_t rank, const Header& header) {
  const Entry& entry = *keys_.at(header.key);
  const Arrival& arrival = entry.arrivals[rank];
  Header answer = header;
  answer.type = FrameType::kResumed;
  answer.flags = 0;
  const bool is_here = arrival.begun && arrival.round == header.round;
  answer.total = is_here ? arrival.total : entry.of_rows() ? header.total : entry.total;
  answer.offset = is_here ? arrival.counted : 0;
  host_.Answer(rank, answer);
}

// After a call to the key, which rank `by` has caused: tells what it has brought about. False: it has failed, and with
// it the job.
bool ShardStore::Done(Entry& entry, const Status& status, uint32_t by) {
  for (const PushAnswer& answer : answers_) {
    Count(entry, answer, by);
    Say(entry, answer);
  }
  answers_.clear();
  if (!status.ok()) {
    host_.FailStore(Status(status.code(), StoreKeyText(entry.number) + ": " + status.message()));
    return false;
  }
  if (entry.key == nullptr) return true;
  Serve(entry, by);
  TimeHeld(entry);
  if (const auto at = entry.key->ReadyAt()) host_.CallStoreAt(*at);
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

void ShardStore::Say(const Entry& entry, const PushAnswer& answer) {
  Header header;
  header.type = FrameType::kApplied;
  header.key = entry.number;
  header.round = static_cast<uint32_t>(answer.push.clock);
  header.offset = static_cast<uint64_t>(answer.version);
  header.aux = static_cast<uint32_t>(answer.applied);
  header.total = answer.push.bytes;
  host_.Answer(answer.push.source, header, answer.several == nullptr ? "" : EncodeRanks(*answer.several));
}

void ShardStore::PassTime() {
  for (auto& [number, entry] : keys_)
    if (entry->key != nullptr && !Done(*entry, entry->key->PassTime(host_.Now(), &answers_))) return;
}

void ShardStore::OnLeft(uint32_t rank) {
  OnLinkGone(rank);
  ranks_[rank].left = true;
  std::vector<uint64_t> numbers;
  for (auto& [number, entry] : keys_) {
    numbers.push_back(number);
    entry->arrivals[rank] = {};
    if (entry->key != nullptr && !Done(*entry, entry->key->Lose(rank, host_.Now(), &answers_), rank)) return;
    if (!ChangeIfAgreed(*entry, rank)) return;
  }
  saving_.OnLeft(rank);
  for (const uint64_t number : numbers) FreeIfForgotten(number);
}

// Values out

void ShardStore::OnPull(uint32_t rank, const Header& header) {
  Entry& entry = *keys_.at(header.key);
  if (entry.key == nullptr || header.total > entry.total || entry.of_rows())
    return Refuse(rank, entry.number, "a pull of a value, or of a part of it, that there isn't");
  if (entry.readers.size() + ranks_[rank].sendings.size() >= kMostReads)
    return Refuse(rank, entry.number, "it asks for more values than it reads");
  entry.readers.push_back({.rank = rank,
                           .round = header.round,
                           .clock = header.round,
                           .least = header.aux,
                           .known = header.root,
                           .begin = static_cast<uint32_t>(header.offset),
                           .end = header.total,
                           .priority = header.priority,
                           .since = host_.Now()});
  Serve(entry);
}

// A reader sees its own contributions: those before a pull, and the one that a result answers.
bool ShardStore::HasOwn(const Entry& entry, const Reader& reader) const {
  const Ledger& ledger = entry.key->ledger();
  const bool result = reader.type == FrameType::kResult;
  return (result ? ledger.source(reader.rank).clock : ledger.Clock(reader.rank)) >= reader.clock;
}

bool ShardStore::MayHave(const Entry& entry, const Reader& reader) const {
  const Ledger& ledger = entry.key->ledger();
  return HasOwn(entry, reader) && ledger.version() >= reader.least && ledger.MayRead(reader.rank);
}

void ShardStore::Serve(Entry& entry, uint32_t by) {
  std::erase_if(entry.readers, [&](Reader& reader) {
    if (!MayHave(entry, reader)) {
      if (!reader.held_up && HasOwn(entry, reader)) reader.held_up = host_.Now();
      return false;
    }
    if (reader.held_up) HasWaited(entry, reader.rank, Awaited::kReading, *reader.held_up, by);
    return Send(entry, reader);
  });
}

// False: there is no answer, and the job has failed.
bool ShardStore::Send(const Entry& entry, const Reader& reader) {
  Sending sending{.priority = reader.priority, .order = order_++, .header = {}, .value = nullptr};
  Header& header = sending.header;
  header.type = reader.type;
  header.dtype = entry.dtype;
  header.key = entry.number;
  header.round = reader.round;
  header.priority = reader.priority;
  header.root = static_cast<uint32_t>(entry.key->ledger().version());
  if (reader.fetch) {
    sending.value = Fetched(entry, reader, header);
  } else {
    sending.value = entry.key->value().value;
    header.total = reader.end;
    header.offset = reader.known == header.root ? reader.end : reader.begin;
  }
  if (sending.value == nullptr) return false;
  ranks_[reader.rank].sendings.push(std::move(sending));
  host_.OnValues(reader.rank);
  return true;
}

// The answer, a copy: rows change in place. nullptr: the job has failed.
std::shared_ptr<const ShardBuffer> ShardStore::Fetched(const Entry& entry, const Reader& reader, Header& header) {
  const Fetch& fetch = *reader.fetch;
  auto answer = fetch.Answer(entry.key->rows());
  if (answer.ok() && fetch.of_all() && !entry.spec->filters->empty()) {
    const Draw draw{.key = entry.number, .round = fetch.number, .rank = kServerRank - reader.rank};
    auto filtered =
        entry.spec->filters->Encode(entry.dtype, draw, {answer->buffer.data(), answer->bytes}, kMaxPartition, memory_);
    answer = filtered.ok() ? Result<RowAnswer>({std::move(filtered->buffer), filtered->bytes}) : filtered.status();
  }
  if (!answer.ok()) {
    host_.FailStore(Status(answer.status().code(), StoreKeyText(entry.number) + ": " + answer.status().message()));
    return nullptr;
  }
  header.aux = fetch.number;
  header.total = static_cast<uint32_t>(answer->bytes);
  return std::make_shared<const ShardBuffer>(std::move(answer->buffer));
}

std::optional<int32_t> ShardStore::NextPriority(uint32_t rank) const {
  const auto& sendings = ranks_[rank].sendings;
  return sendings.empty() ? std::nullopt : std::optional(sendings.top().priority);
}

void ShardStore::NextValue(uint32_t rank, size_t segment, Outgoing& next) {
  Rank& to = ranks_[rank];
  Sending sending = to.sendings.top();
  to.sendings.pop();
  next.header = sending.header;
  segment = std::max(segment - segment % sizeof(double), sizeof(double));  // no element is split
  next.header.length = static_cast<uint32_t>(std::min<uint64_t>(segment, sending.header.total - sending.header.offset));
  next.payload = sending.value->data() + sending.header.offset;
  sending.header.offset += next.header.length;
  to.under_way.push_back(sending.value);
  if (sending.header.offset < sending.header.total) to.sendings.push(std::move(sending));
}

void ShardStore::OnValueSent(uint32_t rank) { ranks_[rank].under_way.pop_front(); }

void ShardStore::OnLinkGone(uint32_t rank) {
  if (rank >= ranks_.size()) return;
  ranks_[rank] = {.specs = {}, .sendings = {}, .under_way = {}, .left = ranks_[rank].left};
  calls_.OnLinkGone(rank);
  saving_.OnLinkGone(rank);
  for (auto& [number, entry] : keys_) {
    entry->lists[rank].Clear();
    entry->arrivals[rank].nacked.reset();
    std::erase_if(entry->readers, [rank](const Reader& reader) { return reader.rank == rank; });
    std::erase_if(entry->openers, [rank](const Opener& opener) { return opener.rank == rank; });
    // It will ask again.
    std::erase_if(entry->proposers, [rank](const Opener& opener) { return opener.rank == rank; });
    if (entry->key != nullptr && entry->key->ledger().source(rank).resting) entry->key->Wake(rank);
    if (entry->proposers.empty()) entry->proposed = nullptr;
  }
}

// Calls

void ShardStore::OnCall(uint32_t rank, const Header& header, const std::byte* payload) {
  calls_.OnCall(rank, header, {payload, header.length});
}

StoreKey* ShardStore::FindKey(uint64_t key) {
  const auto found = keys_.find(key);
  return found == keys_.end() || found->second->of_rows() ? nullptr : found->second->key.get();
}

void ShardStore::Replaced(uint64_t key) { Done(*keys_.at(key), Status()); }

void ShardStore::AnswerCall(uint32_t rank, const Header& header, const std::string& payload) {
  host_.Answer(rank, header, payload);
}

void ShardStore::RefuseCall(uint32_t rank, uint64_t key, const std::string& what) { Refuse(rank, key, what); }

double ShardStore::CallTime() const { return host_.Now(); }

// Checkpoints

void ShardStore::OnSaving(uint32_t rank, const Header& header, const std::byte* payload) {
  saving_.OnFrame(rank, header, {payload, header.length});
}

StoreKey* ShardStore::FindSaved(uint64_t key) {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : found->second->key.get();
}

bool ShardStore::HasLeft(uint32_t rank) const { return ranks_[rank].left; }

void ShardStore::RestAt(uint64_t key, uint32_t rank) {
  Entry& entry = *keys_.at(key);
  if (entry.key->ledger().source(rank).live) Done(entry, entry.key->Rest(rank, host_.Now(), &answers_), rank);
}

void ShardStore::WakeAt(uint64_t key, uint32_t rank) {
  StoreKey* const saved = FindSaved(key);
  if (saved != nullptr && saved->ledger().source(rank).resting) saved->Wake(rank);
}

void ShardStore::Restored(uint64_t key, const Status& status, std::vector<PushAnswer> answers) {
  answers_ = std::move(answers);
  Done(*keys_.at(key), status);
}

void ShardStore::AnswerSaving(uint32_t rank, const Header& header, const std::string& payload) {
  host_.Answer(rank, header, payload);
}

void ShardStore::RefuseSaving(uint32_t rank, uint64_t key, const std::string& what) { Refuse(rank, key, what); }

double ShardStore::SavingTime() const { return host_.Now(); }

// Waits

bool ShardStore::HasWaiting() const {
  return !calls_.Waits().empty() || saving_.waits() || std::ranges::any_of(keys_, [](const auto& one) {
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
