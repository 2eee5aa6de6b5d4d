#include "csrc/transport/tcp_queue.h"

#include <linux/tcp.h>  // netinet's has no rates
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

namespace byteps_like {
namespace {

constexpr int kUnsentBytes = 256 << 10;  // two segments
constexpr int kShortUnsentBytes = 16 << 10;
constexpr double kShortSeconds = 0.5e-3;
// Below the least a sender can't keep a line busy; beyond the most the path is fast or far, and a queue of half a
// millisecond is not worth the danger of starving it (a buffer that was set grows no more by itself).
constexpr double kLeastShort = 48 << 10;
constexpr double kMostShort = 256 << 10;
constexpr int kLong = 4 << 20;  // the kernel cuts it to what it allows

void Set(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof(value)); }

// Bytes that the path carries in its round trip and the time of a short queue; 0 if it is not known.
double ShortWindow(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return static_cast<double>(info.tcpi_delivery_rate) * (2e-6 * info.tcpi_min_rtt + kShortSeconds);
}

}  // namespace

TcpQueue::TcpQueue(int fd) : fd_(fd) { Set(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes); }

bool TcpQueue::KeepShort(bool on) {
  const double wanted = on ? ShortWindow(fd_) : 0;
  const bool held = wanted > 0 && wanted <= kMostShort;
  const int window = held ? static_cast<int>(std::max(wanted, kLeastShort)) : 0;
  if (window == 0 && window_ == 0) return false;
  // Small changes are noise.
  if (window != 0 && std::abs(window - window_) < window_ / 4) return true;
  Set(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, held ? kShortUnsentBytes : kUnsentBytes);
  Set(fd_, SOL_SOCKET, SO_SNDBUF, held ? window : kLong);
  window_ = window;
  return held;
}

}  // namespace byteps_like
