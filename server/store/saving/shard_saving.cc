#include "server/store/saving/shard_saving.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/wire/bytes.h"
#include "server/store/fields.h"
#include "server/store/saving/key_bytes.h"

namespace byteps_like {
namespace {

std::string KeyText(uint64_t key) { return "store key " + std::to_string(key); }

Status Lost() {
  return Status(Code::kPeerLost,
                "what was brought of it before is lost with its server, or with a rank: restore it again");
}

}  // namespace

void ShardSaving::Reset(uint32_t ranks) {
  requests_.Reset(ranks);
  cuts_.clear();
  restored_.clear();
  taking_.clear();
}

void ShardSaving::OnFrame(uint32_t rank, const Header& header, std::span<const std::byte> payload) {
  if (taking_.contains(rank) || !requests_.Takes(rank, header)) return;
  if (header.type == FrameType::kCut) return OnCut(rank, header, payload);
  const uint8_t what = payload.empty() ? 0 : static_cast<uint8_t>(payload.front());
  if (what == static_cast<uint8_t>(StateRequest::kTake) || what == static_cast<uint8_t>(StateRequest::kTakeRows))
    return Take(rank, header, payload);
  if (what == static_cast<uint8_t>(StateRequest::kLetGo)) return LetGo(rank, header, payload);
  Answer(rank, header, Answered(rank, payload));
}

void ShardSaving::Answer(uint32_t rank, const Header& header, Result<std::string> answer) {
  const Status status = answer.status();
  requests_.Answer(rank, header,
                   status.ok() ? status : Status(status.code(), KeyText(header.key) + ": " + status.message()),
                   status.ok() ? std::move(*answer) : "");
}

// Cuts

void ShardSaving::OnCut(uint32_t rank, const Header& header, std::span<const std::byte> payload) {
  Fields fields(payload);
  uint32_t count = 0;
  if (!fields.Take(&count) || count == 0 || fields.rest().size() / sizeof(uint64_t) < count ||
      fields.rest().size() - count * sizeof(uint64_t) > kMaxWord)
    return keys_.RefuseRequest(rank, header.key, "a cut through no keys, or with too much to say");
  std::vector<uint64_t> keys(count);
  for (uint64_t& key : keys) {
    fields.Take(&key);
    if (keys_.FindKey(key) == nullptr) return keys_.RefuseRequest(rank, key, "a cut through a key without a value");
  }
  Cut& cut = cuts_[keys.front()];
  const auto word = fields.rest();
  cut.comers[rank] = {{reinterpret_cast<const char*>(word.data()), word.size()}, header, keys_.RequestTime()};
  if (cut.keys.empty()) cut.keys = keys;
  const uint64_t first = cut.keys.front();
  if (cut.keys != keys)
    return Conclude(first,
                    Status(Code::kMismatch, KeyText(first) + ": the ranks disagree: rank " + std::to_string(rank) +
                                                " saves or restores " + std::to_string(keys.size()) +
                                                " keys with it, others " + std::to_string(cut.keys.size()) +
                                                " or other ones; all ranks must have the same tensors"));
  if (MissingFor(cut).empty()) return Conclude(first, {});
  for (const uint64_t key : keys) keys_.RestAt(key, rank);
}

std::vector<uint32_t> ShardSaving::MissingFor(const Cut& cut) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < requests_.ranks(); ++rank)
    if (!cut.comers.contains(rank) && !keys_.HasLeft(rank)) missing.push_back(rank);
  return missing;
}

void ShardSaving::ConcludeIfAllAreHere(uint64_t first) {
  const auto found = cuts_.find(first);
  if (found != cuts_.end() && MissingFor(found->second).empty()) Conclude(first, {});
}

// All who have come go on.
void ShardSaving::Conclude(uint64_t first, const Status& status) {
  const Cut cut = std::move(cuts_.extract(first).mapped());
  const std::string words = WordsOf(cut);
  for (const auto& [rank, comer] : cut.comers)
    for (const uint64_t key : cut.keys) keys_.WakeAt(key, rank);
  for (const auto& [rank, comer] : cut.comers) requests_.Answer(rank, comer.header, status, words);
}

// What each rank has said, by rank.
std::string ShardSaving::WordsOf(const Cut& cut) const {
  std::string words;
  for (uint32_t rank = 0; rank < requests_.ranks(); ++rank) {
    const auto comer = cut.comers.find(rank);
    Append(words, comer == cut.comers.end() ? kNoWord : static_cast<uint32_t>(comer->second.word.size()));
    if (comer != cut.comers.end()) words += comer->second.word;
  }
  return words;
}

void ShardSaving::OnLinkGone(uint32_t rank) {
  for (auto& [first, cut] : cuts_) {
    if (!cut.comers.erase(rank)) continue;
    for (const uint64_t key : cut.keys) keys_.WakeAt(key, rank);
  }
  std::erase_if(cuts_, [](const auto& one) { return one.second.comers.empty(); });
}

void ShardSaving::OnLeft(uint32_t rank) {
  std::erase_if(restored_, [rank](const auto& one) { return one.second.by == rank; });
  std::vector<uint64_t> all;
  all.reserve(cuts_.size());
  for (const auto& [first, cut] : cuts_) all.push_back(first);
  for (const uint64_t first : all) ConcludeIfAllAreHere(first);
}

std::vector<StoreWait> ShardSaving::Waits(double contributed) const {
  std::vector<StoreWait> found;
  for (const auto& [first, cut] : cuts_) {
    std::string missing;
    for (const uint32_t rank : MissingFor(cut)) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    for (const auto& [rank, comer] : cut.comers)
      found.push_back({rank, std::max(comer.since, contributed),
                       KeyText(first) + ": rank " + std::to_string(rank) +
                           " waits until all ranks save or restore it; ranks that do not: " + missing});
  }
  for (const auto& [rank, taking] : taking_)
    found.push_back({rank, taking.since,
                     "rank " + std::to_string(rank) + " waits for what shard " + std::to_string(taking.shard) +
                         " of all servers has set aside of the world before"});
  return found;
}

// What keys keep

Result<std::string> ShardSaving::Answered(uint32_t rank, std::span<const std::byte> payload) {
  Fields fields(payload);
  uint8_t what = 0;
  uint64_t number = 0;
  if (!fields.Take(&what)) return Misfits();
  const auto request = static_cast<StateRequest>(what);
  if (request == StateRequest::kHeads) return Heads(fields.rest());
  if (request == StateRequest::kSetAside) return PutAside(fields.rest());
  if (!fields.Take(&number)) return Misfits();
  StoreKey* const key = keys_.FindKey(number);
  if (key == nullptr) return InvalidRequest("it has no value");
  const bool goes_on =
      request == StateRequest::kWrite || request == StateRequest::kWriteRows || request == StateRequest::kCommit;
  if (goes_on && !restored_.contains(number)) return Lost();
  Status done;
  switch (request) {
    case StateRequest::kRead:
      return ReadBytes(*key, fields.rest());
    case StateRequest::kRows:
      return ReadRows(*key, fields.rest());
    case StateRequest::kClear:
      restored_[number] = {.by = rank};
      break;
    case StateRequest::kWrite:
      done = Write(*key, number, fields.rest());
      break;
    case StateRequest::kWriteRows:
      done = WriteRows(*key, number, fields.rest());
      break;
    case StateRequest::kCommit:
      done = Commit(*key, number, fields.rest());
      break;
    case StateRequest::kGiveUp:
      restored_.erase(number);
      break;
    default:
      return InvalidRequest("there is no such request");
  }
  if (!done.ok()) return done;
  return std::string();
}

// Of each key: version, bytes of its state (of a row's, of a table), contributions that wait, and the ranks' clocks.
Result<std::string> ShardSaving::Heads(std::span<const std::byte> keys) {
  Fields fields(keys);
  std::string heads;
  for (uint64_t number = 0; fields.Take(&number);) {
    const StoreKey* const key = keys_.FindKey(number);
    if (key == nullptr) return InvalidRequest(KeyText(number) + " has no value");
    Append(heads, key->ledger().version());
    Append(heads, static_cast<uint64_t>(key->of_rows() ? key->rows().state_bytes() : key->state().size()));
    Append(heads, static_cast<uint32_t>(key->waiting()));
    Append(heads, requests_.ranks());
    for (uint32_t rank = 0; rank < requests_.ranks(); ++rank) Append(heads, key->ledger().source(rank).clock);
    if (heads.size() > kMaxState) return InvalidRequest("it asks for more heads than there is room for");
  }
  return fields.rest().empty() ? Result<std::string>(std::move(heads)) : Misfits();
}

// Between two worlds

// This shard, for each key where else it is, and their heads.
Result<std::string> ShardSaving::PutAside(std::span<const std::byte> keys) {
  const auto own = keys_.OwnShard();
  if (!own) return InvalidRequest("nothing goes on from a world whose servers have no part in the next one");
  auto heads = Heads(keys);
  if (!heads.ok()) return heads;
  std::string found;
  Append(found, *own);
  Fields fields(keys);
  for (uint64_t number = 0; fields.Take(&number);) Append(found, keys_.PutAside(number));
  return found + *heads;
}

// What the rank gets for it is the answer of whoever has it, without what was wanted.
void ShardSaving::Take(uint32_t rank, const Header& header, std::span<const std::byte> payload) {
  Fields fields(payload);
  uint8_t what = 0, part = 0;
  uint64_t number = 0, target = 0;
  uint32_t shard = 0;
  fields.Take(&what);
  const bool of_rows = static_cast<StateRequest>(what) == StateRequest::kTakeRows;
  const bool is_whole =
      fields.Take(&number) && (of_rows || (fields.Take(&part) && fields.Take(&target))) && fields.Take(&shard);
  if (!is_whole) return Answer(rank, header, Misfits());
  Ask(rank, header, shard, {reinterpret_cast<const char*>(fields.rest().data()), fields.rest().size()},
      [=, this](std::string_view taken) {
        return of_rows ? LandRows(number, taken) : LandBytes(number, part, target, taken);
      });
}

void ShardSaving::LetGo(uint32_t rank, const Header& header, std::span<const std::byte> payload) {
  Fields fields(payload.subspan(1));
  uint32_t shard = 0;
  if (!fields.Take(&shard) || !fields.rest().empty()) return Answer(rank, header, Misfits());
  std::string asked;
  Append(asked, uint32_t{0});
  Append(asked, kAllKeys);
  Ask(rank, header, shard, std::move(asked), [](std::string_view) { return std::string(); });
}

// Another shard, or this one, before the rank is answered, with what is made of what that has said.
void ShardSaving::Ask(uint32_t rank, const Header& header, uint32_t shard, std::string asked, Landing land) {
  taking_[rank] = {shard, keys_.RequestTime()};
  keys_.AskAside(shard, std::move(asked), [=, this, land = std::move(land)](Result<std::string> taken) {
    taking_.erase(rank);
    Answer(rank, header, taken.ok() ? land(*taken) : taken.status());
  });
}

// `taken`: a version, then the bytes.
Result<std::string> ShardSaving::LandBytes(uint64_t number, uint8_t part, uint64_t target, std::string_view taken) {
  StoreKey* const key = keys_.FindKey(number);
  if (key == nullptr || !restored_.contains(number)) return Lost();
  if (taken.size() < sizeof(uint64_t)) return Misfits();
  std::string brought;
  Append(brought, part);
  Append(brought, target);
  brought += taken.substr(sizeof(uint64_t));
  const Status done = Write(*key, number, std::as_bytes(std::span(brought)));
  return done.ok() ? Result<std::string>(std::string()) : done;
}

// `taken`: a version and the next place, then the rows.
Result<std::string> ShardSaving::LandRows(uint64_t number, std::string_view taken) {
  constexpr size_t kHead = 2 * sizeof(uint64_t);
  StoreKey* const key = keys_.FindKey(number);
  if (key == nullptr || !restored_.contains(number)) return Lost();
  if (taken.size() < kHead) return Misfits();
  const Status done = WriteRows(*key, number, std::as_bytes(std::span(taken.substr(kHead))));
  return done.ok() ? Result<std::string>(std::string(taken.substr(0, kHead))) : done;
}

Status ShardSaving::Write(const StoreKey& key, uint64_t number, std::span<const std::byte> brought) {
  Fields fields(brought);
  uint8_t part = 0;
  uint64_t offset = 0;
  if (!fields.Take(&part) || !fields.Take(&offset)) return Misfits();
  const auto bytes = fields.rest();
  auto place = PlaceOf(key, part, offset, bytes.size());
  if (!place.ok()) return place.status();
  const bool is_value = place->part == SavedPart::kValue;
  ShardBuffer& buffer = is_value ? restored_[number].value : restored_[number].state;
  const size_t all = BytesOf(key, place->part);
  if (all != 0 && buffer.size() == 0) {
    buffer = memory_.Take(all);
    if (buffer.size() == 0) return memory_.Exhausted();
    if (is_value) {
      std::memcpy(buffer.data(), key.value().value->data(), all);
    } else {
      std::memcpy(buffer.data(), key.state().data(), all);
    }
  }
  if (!bytes.empty()) std::memcpy(buffer.data() + offset, bytes.data(), bytes.size());
  return {};
}

Status ShardSaving::WriteRows(const StoreKey& key, uint64_t number, std::span<const std::byte> brought) {
  if (!key.of_rows()) return InvalidRequest("it has a value, not rows");
  Restored& restored = restored_[number];
  if (restored.rows == nullptr) {
    auto rows = key.FreshRows();
    if (!rows.ok()) return rows.status();
    restored.rows = std::move(*rows);
  }
  return restored.rows->Restore(brought);
}

Status ShardSaving::Commit(StoreKey& key, uint64_t number, std::span<const std::byte> brought) {
  Fields fields(brought);
  int64_t version = 0;
  if (!fields.Take(&version) || !fields.rest().empty()) return Misfits();
  if (version < 0 || version > UINT32_MAX) return InvalidRequest("there is no version " + std::to_string(version));
  Restored restored = std::move(restored_[number]);
  restored_.erase(number);
  if (key.of_rows() && restored.rows == nullptr) {
    auto none = key.FreshRows();
    if (!none.ok()) return none.status();
    restored.rows = std::move(*none);
  }
  std::vector<PushAnswer> answers;
  const Status status = key.of_rows() ? key.Restore(std::move(restored.rows), version, keys_.RequestTime(), &answers)
                                      : key.Restore(std::move(restored.value), std::move(restored.state), version,
                                                    keys_.RequestTime(), &answers);
  keys_.Restored(number, status, std::move(answers));
  return status;
}

}  // namespace byteps_like
