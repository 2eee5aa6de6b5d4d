#include "server/store/policies/partial.h"

#include <limits>

#include "server/store/ledger.h"

namespace byteps_like {
namespace {

constexpr double kLeastSeconds = 1e-9;  // of a round, to divide by

// With k contributions after T seconds, one more raises the rate if it comes within T / k.
double LastWorthWaiting(const Ledger& key) {
  const OpenVersion& open = key.open();
  const double worth = (open.finished.back() - open.since) / static_cast<double>(open.finished.size());
  return !key.gap() || *key.gap() >= worth ? kNow : open.finished.back() + worth;
}

// Of how many contributions versions bring the value on fastest. The twin says how, and after whom.
uint32_t BestCount(const Ledger& key) {
  if (key.estimates().empty()) return key.live();
  double square = 0, noise = 0;
  for (const GradientEstimate& one : key.estimates()) {
    square += one.square;
    noise += one.noise;
  }
  const auto known = static_cast<double>(key.estimates().size());
  uint32_t best = key.live();
  double fastest = 0;
  for (uint32_t count = 1; count <= key.live(); ++count) {
    double seconds = 0, rounds = 0;
    for (size_t i = 0; i + 1 < key.rounds().size(); ++i) {  // the last one is open
      const std::vector<double>& times = key.rounds()[i].times;
      if (times.size() < count) continue;
      seconds += times[count - 1];
      ++rounds;
    }
    if (rounds == 0) break;
    const double rate = (square / known - noise / known / count) / std::max(seconds / rounds, kLeastSeconds);
    if (rate > fastest) {
      best = count;
      fastest = rate;
    }
  }
  return best;
}

}  // namespace

PushVerdict Partial::OnPush(const Ledger& key, const StorePush& push) const {
  return static_cast<double>(key.version() - push.base) <= max_age_ ? PushVerdict::kCount : PushVerdict::kLate;
}

std::optional<double> Partial::ReadyAt(const Ledger& key) const {
  const OpenVersion& open = key.open();
  if (open.pushes.empty()) return std::nullopt;
  if (key.AllLiveHaveFinished()) return kNow;
  const uint32_t needed = Needed(key);
  if (open.finished.size() < needed) return std::nullopt;
  if (key.AwaitsNone()) return kNow;
  return grace_ ? open.finished[needed - 1] + *grace_ : LastWorthWaiting(key);
}

bool Partial::MayRead(const Ledger& key, uint32_t reader) const { return key.version() > key.source(reader).base; }

uint32_t KOfN::Needed(const Ledger& key) const { return k_ ? std::min(*k_, key.live()) : BestCount(key); }

uint32_t Backup::Needed(const Ledger& key) const { return key.live() > spare_ ? key.live() - spare_ : 1; }

std::unique_ptr<StorePolicy> KOfN::Make(CodecSpec& spec) {
  auto made = std::make_unique<KOfN>();
  made->grace_ = spec.RealOr("grace", "auto", 0, std::numeric_limits<double>::max());
  if (CodecSpec looked = spec; looked.Text("k") == "auto") {
    spec.Text("k");
  } else {
    made->k_ = static_cast<uint32_t>(spec.Integer("k", 1, INT32_MAX));
  }
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
