// Values and rows on their way out, to readers that may have them.
#include <algorithm>
#include <utility>

#include "server/store/shard/store_entry.h"

namespace byteps_like {

void ShardStore::OnPull(uint32_t rank, const Header& header) {
  Entry& entry = *keys_.at(header.key);
  if (entry.key == nullptr || header.total > entry.total || entry.of_rows())
    return Refuse(rank, entry.number, "a pull of a value, or of a part of it, that there isn't");
  if (entry.spec->filters->of_values() && (header.offset != 0 || header.total != entry.total))
    return Refuse(rank, entry.number, "a pull of a part of a value, which filters make one payload of");
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
bool ShardStore::Send(Entry& entry, const Reader& reader) {
  Sending sending{.priority = reader.priority, .order = order_++, .header = {}, .value = nullptr};
  Header& header = sending.header;
  header.type = reader.type;
  header.dtype = entry.dtype;
  header.key = entry.number;
  header.round = reader.round;
  header.priority = reader.priority;
  header.root = static_cast<uint32_t>(entry.key->ledger().version());
  sending.value = reader.fetch ? Fetched(entry, reader, header) : Value(entry, reader, header);
  if (sending.value == nullptr) return false;
  SayCopied(entry, reader.rank, [this, rank = reader.rank, sending = std::move(sending)] {
    ranks_[rank].sendings.push(sending);
    host_.OnValues(rank);
  });
  return true;
}

// The value in force, or what filters make of it: the same for all that read this version. nullptr: the job has failed.
std::shared_ptr<const ShardBuffer> ShardStore::Value(Entry& entry, const Reader& reader, Header& header) {
  const Snapshot snapshot = entry.key->value();
  const bool has_it = reader.known == header.root;
  if (!entry.spec->filters->of_values() || has_it) {
    header.total = reader.end;
    header.offset = has_it ? reader.end : reader.begin;
    return snapshot.value;
  }
  FilteredValue& known = entry.filtered;
  auto payload = known.payload.lock();
  if (payload == nullptr || known.version != snapshot.version) {
    const Draw draw{.key = entry.number, .round = header.root, .rank = kServerRank};
    auto made = entry.spec->filters->EncodeValue(entry.dtype, draw, {snapshot.value->data(), entry.total},
                                                 kMaxPartition, memory_);
    if (!made.ok()) {
      host_.FailStore(Status(made.status().code(), StoreKeyText(entry.number) + ": " + made.status().message()));
      return nullptr;
    }
    payload = std::make_shared<const ShardBuffer>(std::move(made->buffer));
    known = {snapshot.version, static_cast<uint32_t>(made->bytes), payload};
  }
  header.total = known.bytes;
  return payload;
}

// The answer, a copy: rows change in place. nullptr: the job has failed.
std::shared_ptr<const ShardBuffer> ShardStore::Fetched(const Entry& entry, const Reader& reader, Header& header) {
  const Fetch& fetch = *reader.fetch;
  auto answer = fetch.Answer(entry.key->rows());
  if (answer.ok() && fetch.of_all() && entry.spec->filters->of_values()) {
    const Draw draw{.key = entry.number, .round = fetch.number, .rank = kServerRank - reader.rank};
    auto filtered = entry.spec->filters->EncodeValue(entry.dtype, draw, {answer->buffer.data(), answer->bytes},
                                                     kMaxPartition, memory_);
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

}  // namespace byteps_like
