#include "csrc/transport/tcp/tcp_queue.h"

#include <linux/tcp.h>  // netinet's has no rates
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace byteps_like {
namespace {

constexpr uint32_t kShortUnsentBytes = 64u << 10;
// Fractions of the rate; the rest is for other connections. Less if a queue stands all the same: then the rate was too
// high, or was measured for more than one connection.
constexpr double kMostOfRate = 0.9, kLeastOfRate = 0.7, kSlower = 0.03, kFaster = 0.002;
constexpr uint32_t kQueueMicroseconds = 1000;  // of waiting: a queue stands
constexpr double kAgree = 0.25;
constexpr int kEnoughSamples = 6;
constexpr auto kOld = std::chrono::seconds(60);
// Beyond it the processors are the narrowest place, not a line with a queue.
constexpr double kMostRate = 500e6;

template <typename Value>
void Set(int fd, int level, int name, Value value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

}  // namespace

TcpQueue::TcpQueue(int fd) : fd_(fd) { Limit(kDefaultKernelQueue); }

void TcpQueue::Limit(uint32_t unsent_bytes) {
  unsent_ = unsent_bytes == 0 ? UINT32_MAX : unsent_bytes;
  Set(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, unsent_);
}

// The kernel's rate is that of the last round trip. While a queue stands, it is the rate of the path. Otherwise it is
// the rate of single bursts, which token buckets let through at any speed, or of our own source of bytes. While a queue
// stands, the bytes under way take one round trip to pass, so a rate that does not agree with that is accidental.
void TcpQueue::Measure() {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  const bool stands = info.tcpi_rtt >= info.tcpi_min_rtt + kQueueMicroseconds;
  const Deadline now = Clock::now();
  if (samples_ == kEnoughSamples && now < until_) {
    share_ = stands ? std::max(kLeastOfRate, share_ - kSlower) : std::min(kMostOfRate, share_ + kFaster);
    return;
  }
  if (samples_ == kEnoughSamples) samples_ = 0;
  if (info.tcpi_notsent_bytes == 0 || !stands) return;
  const auto rate = static_cast<double>(info.tcpi_delivery_rate);
  const double expected = 1e6 * info.tcpi_unacked * info.tcpi_snd_mss / info.tcpi_rtt;
  if (std::abs(rate - expected) > kAgree * expected) return;
  rate_ = (rate_ * samples_ + rate) / (samples_ + 1);
  if (++samples_ < kEnoughSamples) return;
  until_ = now + kOld;
  share_ = kMostOfRate;
}

bool TcpQueue::KeepShort(bool on) {
  if (on) Measure();
  const bool matters = on && samples_ == kEnoughSamples && rate_ <= kMostRate;
  const uint64_t pace = matters ? static_cast<uint64_t>(share_ * rate_) : 0;
  if (pace == pace_) return matters;
  Set(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, matters ? std::min(kShortUnsentBytes, unsent_) : unsent_);
  Set(fd_, SOL_SOCKET, SO_MAX_PACING_RATE, pace != 0 ? pace : ~uint64_t{0});
  pace_ = pace;
  return matters;
}

}  // namespace byteps_like
