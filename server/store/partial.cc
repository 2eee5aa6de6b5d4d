#include "server/store/partial.h"

#include <limits>

#include "server/store/ledger.h"

namespace byteps_like {
namespace {

// With k contributions after T seconds, one more raises the rate if it comes within T / k.
double LastWorthWaiting(const Ledger& key) {
  const OpenVersion& open = key.open();
  const double worth = (open.times.back() - open.since) / static_cast<double>(open.times.size());
  return !key.gap() || *key.gap() >= worth ? kNow : open.times.back() + worth;
}

}  // namespace

PushVerdict Partial::OnPush(const Ledger& key, const StorePush& push) const {
  return static_cast<double>(key.version() - push.base) <= max_age_ ? PushVerdict::kCount : PushVerdict::kLate;
}

std::optional<double> Partial::ReadyAt(const Ledger& key) const {
  const OpenVersion& open = key.open();
  if (open.pushes.empty()) return std::nullopt;
  if (key.AllLiveAreHere()) return kNow;
  const uint32_t needed = Needed(key.live());
  if (open.pushes.size() < needed) return std::nullopt;
  return grace_ ? open.times[needed - 1] + *grace_ : LastWorthWaiting(key);
}

bool Partial::MayRead(const Ledger& key, uint32_t reader) const { return key.version() > key.source(reader).base; }

std::unique_ptr<StorePolicy> KOfN::Make(CodecSpec& spec) {
  auto made = std::make_unique<KOfN>();
  made->grace_ = spec.RealOr("grace", "auto", 0, std::numeric_limits<double>::max());
  made->k_ = static_cast<uint32_t>(spec.Integer("k", 1, INT32_MAX));
  const bool next = spec.Word("late", {"drop", "next"}) == "next";
  const double age = spec.Real("max_age", 0, std::numeric_limits<double>::infinity());
  made->max_age_ = next ? age : 0;
  return made;
}

std::unique_ptr<StorePolicy> Backup::Make(CodecSpec& spec) {
  auto made = std::make_unique<Backup>();
  made->spare_ = static_cast<uint32_t>(spec.Integer("b", 0, INT32_MAX));
  return made;
}

}  // namespace byteps_like
