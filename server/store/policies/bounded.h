// Stale-synchronous and asynchronous: every push makes a version at once, and who is too far ahead waits to read.
#pragma once

#include "server/store/policies/policy.h"

namespace byteps_like {

class EachAtOnce : public StorePolicy {
 public:
  PushVerdict OnPush(const Ledger&, const StorePush&) const override { return PushVerdict::kCount; }
  std::optional<double> ReadyAt(const Ledger& key) const override;
  bool MayRead(const Ledger& key, uint32_t reader) const override;
  bool HasRounds() const override { return false; }
};

class Ssp final : public EachAtOnce {
 public:
  static std::unique_ptr<StorePolicy> Make(CodecSpec& spec);
  double Lead(const Ledger&, uint32_t) const override { return bound_; }

 private:
  double bound_ = 0;
};

class Dssp final : public EachAtOnce {
 public:
  static std::unique_ptr<StorePolicy> Make(CodecSpec& spec);
  double Lead(const Ledger& key, uint32_t source) const override;

 private:
  int64_t low_ = 0, high_ = 0;
};

// Nobody ever waits.
std::unique_ptr<StorePolicy> MakeAsp(CodecSpec& spec);

}  // namespace byteps_like
