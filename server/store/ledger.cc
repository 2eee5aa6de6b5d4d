#include "server/store/ledger.h"

#include <algorithm>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

constexpr double kRecent = 0.25;  // the part of the newest interval in the average of all

}  // namespace

bool OpenVersion::Has(uint32_t source) const {
  return std::ranges::find(pushes, source, &StorePush::source) != pushes.end();
}

bool OpenVersion::Has(uint32_t source, int64_t clock) const {
  return std::ranges::any_of(pushes,
                             [&](const StorePush& push) { return push.source == source && push.clock == clock; });
}

bool OpenVersion::HasLast(uint32_t source) const {
  return std::ranges::any_of(pushes, [&](const StorePush& push) { return push.source == source && push.last; });
}

Ledger::Ledger(const StorePolicy& policy, uint32_t sources, double now) : policy_(&policy), live_(sources) {
  open_.since = now;
  for (uint32_t number = 0; number < sources; ++number) sources_.push_back({.number = number});
  LookBack();
}

const SourceState* Ledger::Find(uint32_t number) const {
  const auto found = std::ranges::lower_bound(sources_, number, {}, &SourceState::number);
  return found != sources_.end() && found->number == number ? &*found : nullptr;
}

int64_t Ledger::least() const {
  int64_t least = INT64_MAX;
  for (const SourceState& one : sources_)
    if (one.live) least = std::min(least, one.clock);
  return live_ == 0 ? 0 : least;
}

bool Ledger::Awaits(const SourceState& source) const {
  return source.live && !source.unfinished && !open_.Has(source.number);
}

bool Ledger::AwaitsNone() const {
  return std::ranges::none_of(sources_, [this](const SourceState& one) { return Awaits(one); });
}

bool Ledger::AllLiveHaveFinished() const {
  return std::ranges::all_of(sources_, [&](const SourceState& one) { return !one.live || open_.HasLast(one.number); });
}

std::vector<uint32_t> Ledger::CutOff() const {
  std::vector<uint32_t> missing;
  if (const auto due = policy_->ReadyAt(*this); !due || *due == kNow) return missing;
  for (const SourceState& one : sources_)
    if (Awaits(one)) missing.push_back(one.number);
  return missing;
}

int64_t Ledger::Clock(uint32_t source) const {
  const auto here = std::ranges::count(open_.pushes, source, &StorePush::source);
  return Find(source)->clock + here + std::ranges::count(held_, source, &StorePush::source);
}

Status Ledger::Push(const StorePush& push, double now, std::vector<Settled>* events) {
  const int64_t expected = Clock(push.source);
  if (push.clock < expected) return {};
  if (push.clock > expected || push.base > version_)
    return Status(Code::kCorrupt, "rank " + std::to_string(push.source) + " has pushed its contribution " +
                                      std::to_string(push.clock) + ", computed on version " +
                                      std::to_string(push.base) + ", after " + std::to_string(expected) +
                                      " of its own, and " + std::to_string(version_) + " versions");
  Note(push, now);
  Offer(push, now, events);
  PassTime(now, events);
  return {};
}

void Ledger::PassTime(double now, std::vector<Settled>* events) {
  for (auto due = policy_->ReadyAt(*this); due && *due <= now; due = policy_->ReadyAt(*this)) Make(now, events);
}

void Ledger::Lose(uint32_t source, double now, std::vector<Settled>* events) {
  if (std::exchange(At(source).resting, false)) return;
  At(source).live = false;
  --live_;
  PassTime(now, events);
}

void Ledger::Rest(uint32_t source, double now, std::vector<Settled>* events) {
  Lose(source, now, events);
  At(source).resting = true;
}

void Ledger::Wake(uint32_t source) {
  SourceState& rested = At(source);
  rested.resting = false;
  rested.live = true;
  ++live_;
}

void Ledger::Change(const StorePolicy& policy, double now, std::vector<Settled>* events) {
  policy_ = &policy;
  LookBack();
  for (SourceState& source : sources_)
    if (source.live && source.base >= 0) source.lead = policy_->Lead(*this, source.number);
  PassTime(now, events);
}

int64_t Ledger::Join(uint32_t source) {
  const int64_t begin = least();
  if (Find(source) == nullptr)
    sources_.insert(std::ranges::lower_bound(sources_, source, {}, &SourceState::number), {.number = source});
  SourceState& joined = At(source);
  joined.live = true;
  joined.unfinished = false;
  joined.clock = std::max(begin, joined.clock);
  ++live_;
  return Clock(source);
}

void Ledger::Amend() {
  ++version_;
  for (const StorePush& push : open_.pushes) At(push.source).base = version_;
  for (const StorePush& push : held_) At(push.source).base = version_;
}

void Ledger::Drop(std::vector<Settled>* events) {
  const std::vector<StorePush> open = std::exchange(open_, {.since = open_.since}).pushes;
  const std::vector<StorePush> held = std::exchange(held_, {});
  for (const StorePush& push : open) Settle(push, 0, events);
  for (const StorePush& push : held) Settle(push, 0, events);
}

void Ledger::Restore(int64_t version, double now) {
  version_ = version;
  open_.since = now;
  for (SourceState& source : sources_) {
    source.base = -1;
    source.last = source.interval = 0;
  }
  LookBack();
}

void Ledger::Follow(uint32_t source, int64_t clock, bool unfinished) {
  At(source).clock = clock;
  At(source).unfinished = unfinished;
}

// From here on.
void Ledger::LookBack() {
  rounds_.clear();
  estimates_.clear();
  observed_.reset();
  if (policy_->Observes()) rounds_.push_back({.began = open_.since, .times = {}});
}

void Ledger::Note(const StorePush& push, double now) {
  SourceState& source = At(push.source);
  source.interval = source.base < 0 ? 0 : now - source.last;
  source.last = now;
  source.base = push.base;
  source.unfinished = !push.last;
  if (push.last) NoteLast(push, now);
}

void Ledger::NoteLast(const StorePush& push, double now) {
  const auto past = static_cast<size_t>(version_ - push.base);
  if (past < rounds_.size()) {
    StoreRound& known = rounds_[rounds_.size() - 1 - past];
    known.times.push_back(now - known.began);
  }
  if (newest_) {
    const double gap = now - *newest_;
    gap_ = gap_ ? *gap_ + kRecent * (gap - *gap_) : gap;
  }
  newest_ = now;
}

// Whether contributions of it wait for the next version: of each source one goes after the other, and a version has the
// blocks of one.
bool Ledger::Waits(uint32_t source) const {
  return open_.HasLast(source) || std::ranges::find(held_, source, &StorePush::source) != held_.end();
}

void Ledger::Offer(const StorePush& push, double now, std::vector<Settled>* events) {
  switch (Waits(push.source) ? PushVerdict::kHold : policy_->OnPush(*this, push)) {
    case PushVerdict::kLate:
      return Settle(push, 0, events);
    case PushVerdict::kHold:
      return held_.push_back(push);
    case PushVerdict::kCount:
      open_.pushes.push_back(push);
      if (push.last) open_.finished.push_back(now);
  }
}

void Ledger::Make(double now, std::vector<Settled>* events) {
  ++version_;
  const std::vector<StorePush> pushes = std::exchange(open_, {.since = now}).pushes;
  if (!rounds_.empty()) rounds_.push_back({.began = now, .times = {}});
  if (rounds_.size() > kRounds + 1) rounds_.pop_front();
  if (observed_) estimates_.push_back(*std::exchange(observed_, std::nullopt));
  if (estimates_.size() > kRounds) estimates_.pop_front();
  const std::vector<StorePush> held = std::exchange(held_, {});
  for (const StorePush& push : pushes) Settle(push, version_, events);
  for (const StorePush& push : held) Offer(push, now, events);
}

void Ledger::Settle(const StorePush& push, int64_t version, std::vector<Settled>* events) {
  SourceState& source = At(push.source);
  ++source.clock;
  if (source.live) source.lead = policy_->Lead(*this, push.source);
  events->push_back({push, version});
}

}  // namespace byteps_like
