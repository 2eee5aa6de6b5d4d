#include "server/store/lists.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

Status Wrong(uint32_t number, const char* why) {
  return Status(Code::kCorrupt, "list " + std::to_string(number) + " of ids " + why);
}

}  // namespace

Status IdLists::Add(const Header& header, const std::byte* payload, ShardMemory& memory) {
  if (header.offset == 0) {
    auto list = std::make_shared<IdList>(IdList{memory.Take(header.total), header.total / sizeof(uint64_t)});
    if (list->bytes.size() < header.total) return memory.Exhausted();
    list->crc = header.root;
    lists_.insert_or_assign(header.aux, Arriving{std::move(list), 0, header.total});
  }
  const auto found = lists_.find(header.aux);
  if (found == lists_.end()) return Wrong(header.aux, "begins without its first segment");
  Arriving& arriving = found->second;
  if (header.total != arriving.total || header.root != arriving.list->crc || header.offset != arriving.counted)
    return Wrong(header.aux, "has a segment that doesn't follow the one before");
  return Count(arriving, header, payload);
}

Status IdLists::Count(Arriving& arriving, const Header& header, const std::byte* payload) {
  if (header.length != 0) std::memcpy(arriving.list->bytes.data() + header.offset, payload, header.length);
  arriving.counted += header.length;
  arriving.crc = kernels::Crc32c(arriving.crc, payload, header.length);
  const size_t before = header.offset / sizeof(uint64_t), first = before == 0 ? 0 : before - 1;
  const auto fresh = arriving.list->ids().subspan(first, arriving.counted / sizeof(uint64_t) - first);
  if (std::ranges::adjacent_find(fresh, std::greater_equal<>()) != fresh.end())
    return Wrong(header.aux, "doesn't ascend");
  if (arriving.is_whole() && arriving.crc != header.root) return Wrong(header.aux, "fails its checksum");
  return {};
}

std::shared_ptr<const IdList> IdLists::Find(uint32_t number, uint32_t crc) const {
  const auto found = lists_.find(number);
  if (found == lists_.end() || !found->second.is_whole() || found->second.list->crc != crc) return nullptr;
  return found->second.list;
}

}  // namespace byteps_like
