// Partial rounds: a version is made of the first contributions, so nobody waits for the slowest.
#pragma once

#include <algorithm>

#include "server/store/policies/policy.h"

namespace byteps_like {

// A version is made when the last blocks of as many sources as are needed are here and the grace is over, or nothing is
// to be had of others: a source brings blocks before its last one at one time, not in each version.
class Partial : public StorePolicy {
 public:
  PushVerdict OnPush(const Ledger& key, const StorePush& push) const override;
  std::optional<double> ReadyAt(const Ledger& key) const override;
  bool MayRead(const Ledger& key, uint32_t reader) const override;
  bool LeavesSome() const override { return true; }

 protected:
  virtual uint32_t Needed(const Ledger& key) const = 0;  // last blocks: from 1 to those of all live sources

  std::optional<double> grace_ = 0;  // seconds; nullopt: as long as it pays
  double max_age_ = 0;               // of a contribution that counts, in versions
};

class KOfN final : public Partial {
 public:
  static std::unique_ptr<StorePolicy> Make(CodecSpec& spec);
  bool Observes() const override { return !k_; }

 private:
  uint32_t Needed(const Ledger& key) const override;
  std::optional<uint32_t> k_;  // nullopt: as many as bring the value on fastest
};

class Backup final : public Partial {
 public:
  static std::unique_ptr<StorePolicy> Make(CodecSpec& spec);

 private:
  uint32_t Needed(const Ledger& key) const override;
  uint32_t spare_ = 0;
};

}  // namespace byteps_like
