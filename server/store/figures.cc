#include "server/store/figures.h"

#include <algorithm>

#include "csrc/wire/call.h"

namespace byteps_like {
namespace {

constexpr double kNanoseconds = 1e9;

void Merge(RankTotals& into, const RankTotals& key, bool first) {
  into.clock = first ? key.clock : std::min(into.clock, key.clock);
  into.counted += key.counted;
  into.late += key.late;
  into.not_finite += key.not_finite;
  into.held += key.held;
  into.ages += key.ages;
  into.oldest = std::max(into.oldest, key.oldest);
  for (size_t what = 0; what < kAwaitedCount; ++what) {
    into.waited[what] = std::max(into.waited[what], key.waited[what]);
    into.awaited[what] = std::max(into.awaited[what], key.awaited[what]);
  }
}

}  // namespace

void KeyFigures::Settle(uint32_t rank, Applied how, uint64_t age) {
  Rank& own = ranks_[rank];
  if (how == Applied::kLate) return own.late.Add(1);
  if (how == Applied::kNotFinite) return own.not_finite.Add(1);
  own.counted.Add(1);
  own.ages.Add(age);
  own.oldest.Raise(age);
}

void KeyFigures::Hold(uint32_t rank) { ranks_[rank].held.Add(1); }

void KeyFigures::Wait(uint32_t rank, Awaited what, double seconds, uint32_t whom) {
  const auto nanoseconds = static_cast<uint64_t>(std::max(seconds, 0.0) * kNanoseconds);
  ranks_[rank].waited[static_cast<size_t>(what)].Add(nanoseconds);
  if (whom != kNoRank && whom != rank) ranks_[whom].awaited[static_cast<size_t>(what)].Add(nanoseconds);
}

RankTotals KeyFigures::Read(uint32_t rank) const {
  const Rank& own = ranks_[rank];
  RankTotals totals{.counted = own.counted.get(),
                    .late = own.late.get(),
                    .not_finite = own.not_finite.get(),
                    .held = own.held.get(),
                    .ages = own.ages.get(),
                    .oldest = own.oldest.get()};
  totals.clock = totals.counted + totals.late + totals.not_finite;
  for (size_t what = 0; what < kAwaitedCount; ++what) {
    totals.waited[what] = static_cast<double>(own.waited[what].get()) / kNanoseconds;
    totals.awaited[what] = static_cast<double>(own.awaited[what].get()) / kNanoseconds;
  }
  return totals;
}

KeyFigures& StoreFigures::Open(uint64_t key, uint32_t ranks) {
  std::lock_guard lock(mutex_);
  return keys_.try_emplace(key, ranks).first->second;
}

void StoreFigures::Close(uint64_t key) {
  std::lock_guard lock(mutex_);
  keys_.erase(key);
}

void StoreFigures::Clear() {
  std::lock_guard lock(mutex_);
  keys_.clear();
}

std::vector<TensorTotals> StoreFigures::Read() const {
  std::vector<TensorTotals> tensors;
  std::lock_guard lock(mutex_);
  for (const auto& [key, figures] : keys_) {
    const auto tensor = static_cast<uint32_t>(key >> kTensorShift);
    const bool first = tensors.empty() || tensors.back().tensor != tensor;
    if (first) tensors.push_back({.tensor = tensor, .keys = 0, .ranks = std::vector<RankTotals>(figures.size())});
    ++tensors.back().keys;
    for (uint32_t rank = 0; rank < figures.size(); ++rank) Merge(tensors.back().ranks[rank], figures.Read(rank), first);
  }
  return tensors;
}

}  // namespace byteps_like
