#include "server/store/fetch.h"

#include <cstring>
#include <utility>

#include "csrc/wire/bytes.h"

namespace byteps_like {

Result<Fetch> Fetch::From(const Header& header, const std::byte* payload, std::shared_ptr<const IdList> list,
                          ShardMemory& memory) {
  Fetch fetch;
  fetch.number = header.total;
  fetch.list = std::move(list);
  if (fetch.list == nullptr) {
    fetch.range = {.low = GetLittle<uint64_t>(payload),
                   .high = GetLittle<uint64_t>(payload + sizeof(uint64_t)),
                   .since = header.offset};
    fetch.count = header.root;
    return fetch;
  }
  if (header.length == 0) return fetch;
  if (header.length != (fetch.list->count * sizeof(uint32_t) + 7) / 8 * 8)
    return Status(Code::kCorrupt, "a request has as many known versions as its list has ids, or none");
  fetch.bound = header.offset;
  fetch.known = memory.Take(header.length);
  if (fetch.known.size() == 0) return memory.Exhausted();
  std::memcpy(fetch.known.data(), payload, header.length);
  return fetch;
}

Result<RowAnswer> Fetch::Answer(const RowContent& rows) const {
  if (list == nullptr) return rows.Range(range, count, kMaxPartition);
  if (!bound) return rows.All(list->ids(), kMaxPartition);
  return rows.Stale(list->ids(), reinterpret_cast<const uint32_t*>(known.data()), *bound, kMaxPartition);
}

}  // namespace byteps_like
