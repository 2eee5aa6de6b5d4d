#include "csrc/transport/chaos/chaos_plan.h"

#include <algorithm>
#include <cmath>

namespace byteps_like {
namespace {

constexpr uint64_t kSparedBytes = 1024;
constexpr double kMinBurst = 64 << 10;
constexpr double kBurstSeconds = 0.005;

// SplitMix64: a counter in, a random number out.
uint64_t Mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

FaultPositions::FaultPositions(uint64_t seed, double per_kib)
    : seed_(Mix(seed)), mean_gap_(per_kib > 0 ? 1024 / per_kib : 0) {
  if (mean_gap_ == 0) return;
  next_ = kSparedBytes;
  Advance();
}

void FaultPositions::Advance() {
  const double uniform = (static_cast<double>(Random() >> 11) + 1) * 0x1p-53;  // (0, 1]
  next_ += 1 + static_cast<uint64_t>(-std::log(uniform) * mean_gap_);
}

uint64_t FaultPositions::Random() { return Mix(seed_ ^ Mix(counter_++)); }

ChaosPlan::ChaosPlan(const ChaosOptions& options, uint64_t seed)
    : rate_(options.rate),
      burst_(std::max(kMinBurst, options.rate * kBurstSeconds)),
      stall_for_(Nanoseconds(options.stall_ms * 1e-3)),
      drop_(Mix(seed) + 1, options.drop),
      corrupt_(Mix(seed) + 2, options.corrupt),
      stall_(Mix(seed) + 3, options.stall),
      credit_(burst_),
      credited_at_(Clock::now()) {}

size_t ChaosPlan::Allow(size_t wanted, Deadline now) {
  wake_at_.reset();
  if (drops() || Stalled(now)) return 0;
  // One byte at a time where one is to be flipped; else up to the next place where something happens.
  const uint64_t fault = corrupts() ? position_ + 1 : std::min({drop_.next(), stall_.next(), corrupt_.next()});
  return Credit(static_cast<size_t>(std::min<uint64_t>(wanted, fault - position_)), now);
}

bool ChaosPlan::Stalled(Deadline now) {
  if (position_ >= stall_.next()) {
    stalled_until_ = now + stall_for_;
    stall_.Advance();
  }
  if (now >= stalled_until_) return false;
  wake_at_ = stalled_until_;
  return true;
}

size_t ChaosPlan::Credit(size_t wanted, Deadline now) {
  if (rate_ == 0) return wanted;
  credit_ = std::min(burst_, credit_ + rate_ * std::chrono::duration<double>(now - credited_at_).count());
  credited_at_ = now;
  const double enough = std::min(static_cast<double>(wanted), burst_ / 4);  // not byte by byte
  if (credit_ < enough) {
    wake_at_ = now + Nanoseconds((enough - credit_) / rate_) + std::chrono::microseconds(1);
    return 0;
  }
  return static_cast<size_t>(std::min(static_cast<double>(wanted), credit_));
}

std::byte ChaosPlan::Flip(std::byte byte) { return byte ^ static_cast<std::byte>(1u << (corrupt_.next() % 8)); }

void ChaosPlan::Moved(size_t bytes) {
  if (bytes > 0 && corrupts()) corrupt_.Advance();
  position_ += bytes;
  if (rate_ > 0) credit_ -= static_cast<double>(bytes);
}

}  // namespace byteps_like
