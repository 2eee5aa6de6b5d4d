#include "server/store/policies/bounded.h"

#include <algorithm>
#include <cmath>

#include "server/store/ledger.h"

namespace byteps_like {
namespace {

// How many clocks, from 0 to `most`, the faster one should go on before it waits for the end of a clock of the slower
// one, so as to wait least; of equally good ones the smallest.
int64_t Extra(const SourceState& fast, const SourceState& slow, int64_t most) {
  if (fast.interval == 0 || slow.interval == 0) return 0;
  int64_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t clocks = 0; clocks <= most; ++clocks) {
    const double arrives = fast.last + static_cast<double>(clocks) * fast.interval;
    const double ends = std::max(0.0, std::ceil((arrives - slow.last) / slow.interval));
    const double wait = slow.last + ends * slow.interval - arrives;
    if (wait < least) best = clocks;
    least = std::min(least, wait);
  }
  return best;
}

// The live source that has the fewest clocks.
const SourceState& Slowest(const Ledger& key) {
  const SourceState* slowest = nullptr;
  for (const SourceState& one : key.sources())
    if (one.live && (slowest == nullptr || one.clock < slowest->clock)) slowest = &one;
  return *slowest;
}

}  // namespace

std::optional<double> EachAtOnce::ReadyAt(const Ledger& key) const {
  return key.open().pushes.empty() ? std::nullopt : std::optional(kNow);
}

bool EachAtOnce::MayRead(const Ledger& key, uint32_t reader) const {
  const SourceState& source = key.source(reader);
  return static_cast<double>(source.clock - key.least()) <= source.lead;
}

std::unique_ptr<StorePolicy> Ssp::Make(CodecSpec& spec) {
  auto made = std::make_unique<Ssp>();
  made->bound_ = static_cast<double>(spec.Integer("s", 0, INT32_MAX));
  return made;
}

std::unique_ptr<StorePolicy> Dssp::Make(CodecSpec& spec) {
  auto made = std::make_unique<Dssp>();
  made->high_ = spec.Integer("hi", 0, INT32_MAX);
  made->low_ = spec.Integer("lo", 0, made->high_);
  return made;
}

double Dssp::Lead(const Ledger& key, uint32_t number) const {
  const SourceState& source = key.source(number);
  const int64_t ahead = source.clock - key.least();
  if (ahead < low_) return static_cast<double>(low_);
  if (ahead > low_)
    return source.lead == kAnyLead
               ? static_cast<double>(low_)
               : std::clamp<double>(source.lead, static_cast<double>(low_), static_cast<double>(high_));
  return static_cast<double>(low_ + Extra(source, Slowest(key), high_ - low_));
}

std::unique_ptr<StorePolicy> MakeAsp(CodecSpec&) { return std::make_unique<EachAtOnce>(); }

}  // namespace byteps_like
