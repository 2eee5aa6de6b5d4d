// What store keys of a world that has ended kept, for the next one: ranks have had it set aside before they left, take
// from it what they want, and let go of it. Of one shard, on its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "csrc/base/status.h"
#include "server/store/store_key.h"

namespace byteps_like {

class SetAside {
 public:
  using Keys = std::unordered_map<uint64_t, std::unique_ptr<StoreKey>>;  // by their numbers in that world

  // Those of an epoch, in place of what there was.
  void Replace(uint32_t epoch, Keys keys) {
    epoch_ = epoch;
    keys_ = std::move(keys);
  }
  size_t size() const { return keys_.size(); }

  // `asked`: u32 epoch, u64 key, i64 version, then what of it: see ReadBytes, or ReadRows. kPeerLost: it isn't here, or
  // not in that version; kInvalid. Or u32 0 and kAllKeys: none are wanted any more.
  Result<std::string> Answer(std::span<const std::byte> asked);

 private:
  uint32_t epoch_ = 0;
  Keys keys_;
};

}  // namespace byteps_like
