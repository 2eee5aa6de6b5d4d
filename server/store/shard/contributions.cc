// Contributions on their way in, segment by segment, with or without lists of rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "server/store/shard/store_entry.h"

namespace byteps_like {
namespace {

constexpr int64_t kMostUnheard = 1 << 16;    // contributions of a rank to a key whose answers it has not confirmed
constexpr uint32_t kMostUnheardRows = 1024;  // the same, to a table, where nobody confirms

}  // namespace

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
  const Arrival& arrival = entry.arrivals[rank];
  const bool goes_on = arrival.begun && arrival.round == header.round;
  if (entry.of_rows() || header.dtype != entry.dtype ||
      !(goes_on ? header.total == arrival.total : MayBeLong(entry, header.total)))
    return Refuse(rank, entry.number, "a contribution has another length or type than its spec, or than it began with");
  if (HasCome(entry, rank, header)) return Repeat(entry, rank, header, payload);
  Land(entry, rank, header, payload);
}

// Whether a contribution may be so long. A first value is no payload.
bool ShardStore::MayBeLong(const Entry& entry, uint32_t total) {
  return entry.key == nullptr ? total == entry.total : entry.spec->filters->Fits(entry.dtype, entry.total, total);
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
  if (arrival.note.source != 0 || arrival.note.function > entry.spec->rules->functions.size()) {
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
  if (std::exchange(entry.set_aside, false) && !LoseThoseWhoLeft(entry)) return;
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
  const bool last = (note.bits & kLastBlock) != 0;
  WholePush whole{{rank, clock, note.base, note.weight, note.loss, arrival.total, arrival.idle, last, note.function},
                  std::move(arrival.buffer),
                  lr,
                  {std::move(arrival.list), {}}};
  if (!Done(entry, entry.key->Push(std::move(whole), host_.Now(), &answers_), rank)) return;
  if (entry.key->ledger().source(rank).clock <= clock) entry.pending.push_back({rank, clock, contributed_});
}

// Makes a gradient, or rows, of what filters have made of them. False: the job has failed.
bool ShardStore::Decode(const Entry& entry, uint32_t rank, Arrival& arrival) {
  const Filters& filters = *entry.spec->filters;
  if (filters.empty() || arrival.idle) return true;
  const size_t bytes = entry.of_rows() ? arrival.list->count * entry.total : entry.total;
  auto rows = filters.Decode(entry.dtype, {std::move(arrival.buffer), arrival.total}, bytes, memory_);
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
  for (const PushAnswer& answer : std::exchange(answers_, {}))  // which has been counted
    SayCopied(entry, rank, [this, number = entry.number, answer] { Say(number, answer); });
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

void ShardStore::OnResume(uint32_t rank, const Header& header) {
  const Entry& entry = *keys_.at(header.key);
  const Arrival& arrival = entry.arrivals[rank];
  Header answer = header;
  answer.type = FrameType::kResumed;
  answer.flags = 0;
  const bool is_here = arrival.begun && arrival.round == header.round;
  answer.total = is_here ? arrival.total : header.total;
  answer.offset = is_here ? arrival.counted : 0;
  host_.Answer(rank, answer);
}

}  // namespace byteps_like
