#include "server/store/chain/copied_key.h"

#include <algorithm>
#include <cstring>

namespace byteps_like {
namespace {

Status Corrupt(const std::string& what) { return Status(Code::kCorrupt, "what goes to its copy " + what); }

std::span<std::byte> First(ShardBuffer& buffer, size_t bytes) { return {buffer.data(), bytes}; }

std::shared_ptr<IdList> FreshList(size_t count, ShardMemory& memory) {
  auto list = std::make_shared<IdList>();
  list->bytes = memory.Take(count * sizeof(uint64_t));
  list->count = count;
  return list;
}

}  // namespace

Result<std::unique_ptr<CopiedKey>> CopiedKey::Make(const Header& header, std::span<const std::byte> text,
                                                   uint32_t sources, double now, ShardMemory& memory) {
  auto whole = ReadWhole(text);
  if (!whole.ok()) return whole.status();
  std::unique_ptr<CopiedKey> copy(new CopiedKey(std::move(*whole), header.round));
  if (Status status = copy->Prepare(sources, now, memory); !status.ok()) return status;
  if (Status status = copy->Expect(header.offset); !status.ok()) return status;
  return copy;
}

// The value and its state have places before they come.
Status CopiedKey::Prepare(uint32_t sources, double now, ShardMemory& memory) {
  memory_ = &memory;
  if (whole_.sources.size() != sources) return Corrupt("is of another number of ranks");
  auto spec = ParseSpec(whole_.terms.spec);
  if (!spec.ok()) return spec.status();
  spec_ = std::move(*spec);
  auto key = FreshKey(sources, now, memory);
  if (!key.ok()) return key.status();
  key_ = std::move(*key);
  for (const PushAnswer& answer : whole_.unheard)
    if (answer.push.source >= sources) return Corrupt("names a rank that there isn't");
  for (uint32_t source = 0; source < sources; ++source)
    key_->Follow(source, whole_.sources[source].clock, whole_.sources[source].unfinished);
  key_->Follow(whole_.version, whole_.unheard);
  if (key_->of_rows()) return {};
  places_.push_back(key_->first_value());
  if (!key_->state().empty()) places_.push_back(key_->state());
  return {};
}

Result<std::unique_ptr<StoreKey>> CopiedKey::FreshKey(uint32_t sources, double now, ShardMemory& memory) const {
  const KeyTerms& terms = whole_.terms;
  if (IsOfRows(terms.spec))
    return StoreKey::Make(spec_.rules, StoreRows{terms.dtype, terms.width}, sources, now, memory);
  const size_t count = terms.total / SizeOf(terms.dtype);
  if (count == 0 || count % terms.width != 0) return Corrupt("has no whole rows");
  ShardBuffer value = memory.Take(terms.total);
  if (value.size() < terms.total) return memory.Exhausted();
  return StoreKey::Make(spec_.rules, StoreValue{terms.dtype, {count / terms.width, terms.width}, std::move(value)},
                        sources, now, memory);
}

// So many bytes follow.
Status CopiedKey::Expect(uint64_t bulk) {
  uint64_t room = 0;
  for (const auto& place : places_) room += place.size();
  const bool saved_rows = !whole_here_ && key_->of_rows();
  if (saved_rows ? bulk % key_->rows().saved_bytes() != 0 : bulk != room)
    return Corrupt("has " + std::to_string(bulk) + " bytes where there is room for " + std::to_string(room));
  missing_ = bulk;
  landed_ = 0;
  return missing_ == 0 ? Settle() : Status();
}

std::byte* CopiedKey::PlaceFor(const Header& header) {
  const bool fits = header.aux == kCopyBytes && header.offset == landed_ && !places_.empty();
  return fits && header.length <= places_.front().size() ? places_.front().data() : nullptr;
}

Status CopiedKey::OnFrame(const Header& header, std::span<const std::byte> payload) {
  ++last_;
  if (header.aux == kCopyBytes) return Land(header, payload);
  if (missing_ != 0 || !whole_here_) return Corrupt("goes on before it is whole");
  is_set_aside_ = header.aux == kCopyStays;
  if (header.aux == kCopyGoesOn) return BeginUpdate(header, payload);
  holds_ = holds_ || header.aux == kCopyHolds;
  return is_set_aside_ || header.aux == kCopyHolds ? Status() : Corrupt("is of an unknown kind");
}

Status CopiedKey::Land(const Header& header, std::span<const std::byte> payload) {
  if (header.offset != landed_ || payload.size() > missing_) return Corrupt("has bytes out of order, or too many");
  landed_ += payload.size();
  missing_ -= payload.size();
  if (places_.empty()) {
    if (Status status = LandRows(payload); !status.ok()) return status;
  } else {
    std::span<std::byte>& place = places_.front();
    if (payload.size() > place.size()) return Corrupt("has bytes across two places");
    if (payload.data() != place.data()) std::memcpy(place.data(), payload.data(), payload.size());
    place = place.subspan(payload.size());
    while (!places_.empty() && places_.front().empty()) places_.pop_front();
  }
  return missing_ == 0 ? Settle() : Status();
}

// Frames may end within a row.
Status CopiedKey::LandRows(std::span<const std::byte> payload) {
  rows_.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  const size_t whole = rows_.size() - rows_.size() % key_->rows().saved_bytes();
  if (Status status = key_->AddRows(std::as_bytes(std::span(rows_.data(), whole))); !status.ok()) return status;
  rows_.erase(0, whole);
  return {};
}

Status CopiedKey::BeginUpdate(const Header& header, std::span<const std::byte> text) {
  auto update = ReadUpdate(text);
  if (!update.ok()) return update.status();
  update_ = std::move(*update);
  text_.assign(reinterpret_cast<const char*>(text.data()), text.size());
  for (const PushAnswer& answer : update_.settled)
    if (answer.push.source >= whole_.sources.size()) return Corrupt("names a rank that there isn't");
  places_.clear();
  for (CopyUpdate::Made& made : update_.made)
    if (Status status = PrepareVersion(made); !status.ok()) return status;
  std::erase_if(places_, [](const auto& place) { return place.empty(); });
  return Expect(header.offset);
}

Status CopiedKey::PrepareVersion(CopyUpdate::Made& made) {
  CombinedGradient& gradient = made.version.gradient;
  const uint64_t expected = key_->of_rows() ? made.ids * whole_.terms.total : whole_.terms.total;
  if (made.bytes != expected) return Corrupt("has a gradient of another length");
  gradient.bytes = memory_->Take(made.bytes);
  if (gradient.bytes.size() < made.bytes) return memory_->Exhausted();
  if (key_->of_rows()) {
    auto list = FreshList(made.ids, *memory_);
    if (list->bytes.size() < made.ids * sizeof(uint64_t)) return memory_->Exhausted();
    places_.push_back(First(list->bytes, made.ids * sizeof(uint64_t)));
    gradient.rows = std::move(list);
  }
  places_.push_back(First(gradient.bytes, made.bytes));
  return {};
}

// All is here that followed the text.
Status CopiedKey::Settle() {
  places_.clear();
  if (!std::exchange(whole_here_, true)) return rows_.empty() ? Status() : Corrupt("ends within a row");
  for (CopyUpdate::Made& made : update_.made)
    if (Status status = key_->Follow(made.version); !status.ok()) return status;
  key_->Follow(update_.version, update_.settled);
  for (size_t i = 0; i < update_.settled.size(); ++i) key_->Heard(update_.settled[i].push.source, update_.heard[i]);
  if (forwards_) updates_.push_back(RecordOfUpdate());
  update_ = {};
  return {};
}

CopyRecord CopiedKey::RecordOfUpdate() {
  CopyRecord record{std::move(text_), {}};
  for (CopyUpdate::Made& made : update_.made) AddGradient(record, std::move(made.version.gradient), made.bytes);
  return record;
}

}  // namespace byteps_like
