// Bulk-synchronous: each version is made of one contribution of every live source, and nobody reads before.
#pragma once

#include "server/store/ledger.h"

namespace byteps_like {

class Bsp final : public StorePolicy {
 public:
  static std::unique_ptr<StorePolicy> Make(CodecSpec&) { return std::make_unique<Bsp>(); }

  PushVerdict OnPush(const Ledger&, const StorePush&) const override { return PushVerdict::kCount; }
  std::optional<double> ReadyAt(const Ledger& key) const override {
    return !key.open().pushes.empty() && key.AllLiveHaveFinished() ? std::optional(kNow) : std::nullopt;
  }
  bool MayRead(const Ledger& key, uint32_t reader) const override { return !key.open().Has(reader); }
};

}  // namespace byteps_like
