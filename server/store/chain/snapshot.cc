#include "server/store/chain/snapshot.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "csrc/wire/frame.h"

namespace byteps_like {
namespace {

void AddRows(CopyRecord& record, const RowContent& rows) {
  for (uint64_t place = 0;;) {
    auto saved = std::make_shared<std::string>();
    place = rows.Save(place, kDefaultSegment, saved.get());
    record.bulk.push_back({reinterpret_cast<const std::byte*>(saved->data()), saved->size(), saved});
    if (place == 0) return;
  }
}

Status AddValue(CopyRecord& record, const StoreKey& key, ShardMemory& memory) {
  const auto value = key.value().value;
  record.bulk.push_back({value->data(), key.size(), value});
  if (key.state().empty()) return {};
  auto state = std::make_shared<ShardBuffer>(memory.Take(key.state().size()));
  if (state->size() < key.state().size()) return memory.Exhausted();
  std::memcpy(state->data(), key.state().data(), key.state().size());
  record.bulk.push_back({state->data(), key.state().size(), state});
  return {};
}

}  // namespace

Result<CopyRecord> SnapshotOf(const StoreKey& key, WholeCopy about, ShardMemory& memory) {
  about.version = key.ledger().version();
  about.sources.resize(key.ledger().sources().size());
  for (const SourceState& source : key.ledger().sources()) {
    about.sources[source.number].clock = source.clock;
    about.sources[source.number].unfinished = source.unfinished;
  }
  about.unheard = key.Unheard();
  CopyRecord record{TextOf(about), {}};
  if (key.of_rows()) {
    AddRows(record, key.rows());
    return record;
  }
  if (Status status = AddValue(record, key, memory); !status.ok()) return status;
  return record;
}

}  // namespace byteps_like
