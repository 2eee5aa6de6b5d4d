#include "server/store/saving/key_bytes.h"

#include "csrc/wire/bytes.h"
#include "server/store/fields.h"

namespace byteps_like {
namespace {

// Whether the row of an id is among those of the buckets whose bits are set; of no bits, of all.
RowContent::Wanted InBuckets(std::span<const std::byte> bits) {
  if (bits.empty()) return nullptr;
  return [bits](uint64_t id) {
    const uint64_t bucket = id >> kBucketShift;
    return (bits[bucket / 8] >> (bucket % 8) & std::byte{1}) != std::byte{0};
  };
}

}  // namespace

Status InvalidRequest(const std::string& what) { return Status(Code::kInvalid, what); }

Status Misfits() { return InvalidRequest("a request about what is saved has fields missing, or too many"); }

size_t BytesOf(const StoreKey& key, SavedPart part) {
  return part == SavedPart::kValue ? key.size() : key.state().size();
}

Result<BytePlace> PlaceOf(const StoreKey& key, uint8_t part, uint64_t offset, uint64_t bytes) {
  if (key.of_rows()) return InvalidRequest("it has rows, not a value");
  const BytePlace place{static_cast<SavedPart>(part), offset, bytes};
  if (place.part != SavedPart::kValue && place.part != SavedPart::kState) return InvalidRequest("it has no such part");
  const size_t all = BytesOf(key, place.part);
  if (bytes > kMaxSaved || offset > all || bytes > all - offset)
    return InvalidRequest("bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) + " of " +
                          std::to_string(all));
  return place;
}

Result<std::string> ReadBytes(const StoreKey& key, std::span<const std::byte> asked) {
  Fields fields(asked);
  uint8_t part = 0;
  uint64_t offset = 0, bytes = 0;
  if (!fields.Take(&part) || !fields.Take(&offset) || !fields.Take(&bytes) || !fields.rest().empty()) return Misfits();
  auto place = PlaceOf(key, part, offset, bytes);
  if (!place.ok()) return place.status();
  const std::byte* const from = place->part == SavedPart::kValue ? key.value().value->data() : key.state().data();
  std::string found;
  found.reserve(sizeof(uint64_t) + bytes);
  Append(found, key.ledger().version());
  if (bytes != 0) found.append(reinterpret_cast<const char*>(from + offset), bytes);
  return found;
}

// From a place on, which is 0 at first: the version, where to go on (0: that is all), and ids with their records.
Result<std::string> ReadRows(const StoreKey& key, std::span<const std::byte> asked) {
  Fields fields(asked);
  uint64_t place = 0;
  if (!fields.Take(&place)) return Misfits();
  const auto bits = fields.rest();
  if (!bits.empty() && bits.size() != kBucketMapBytes) return Misfits();
  if (!key.of_rows()) return InvalidRequest("it has a value, not rows");
  std::string found;
  Append(found, key.ledger().version());
  Append(found, uint64_t{0});
  const uint64_t next = key.rows().Save(place, kMaxSaved, &found, InBuckets(bits));
  PutLittle(reinterpret_cast<std::byte*>(found.data()) + sizeof(uint64_t), next);
  return found;
}

}  // namespace byteps_like
