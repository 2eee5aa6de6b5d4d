#include "server/store/saving/set_aside.h"

#include "server/store/fields.h"
#include "server/store/saving/key_bytes.h"

namespace byteps_like {

Result<std::string> SetAside::Answer(std::span<const std::byte> asked) {
  Fields fields(asked);
  uint32_t epoch = 0;
  uint64_t number = 0;
  int64_t version = 0;
  if (!fields.Take(&epoch) || !fields.Take(&number)) return Misfits();
  if (number == kAllKeys) {
    keys_.clear();
    return std::string();
  }
  if (!fields.Take(&version)) return Misfits();
  const auto found = keys_.find(number);
  const bool is_here = epoch == epoch_ && found != keys_.end() && found->second->ledger().version() == version;
  if (!is_here)
    return Status(Code::kPeerLost, "version " + std::to_string(version) + " of store key " + std::to_string(number) +
                                       " of epoch " + std::to_string(epoch) + ", which was set aside, is gone");
  const StoreKey& key = *found->second;
  return key.of_rows() ? ReadRows(key, fields.rest()) : ReadBytes(key, fields.rest());
}

}  // namespace byteps_like
