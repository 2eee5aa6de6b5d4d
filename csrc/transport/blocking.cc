// The blocking helpers of stream.h: a small epoll of their own stands in for the loop.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "csrc/base/fd.h"
#include "csrc/transport/stream.h"

namespace byteps_like {
namespace {

// Waits for edges on a stream's descriptors. Made only when a call found nothing to do.
class Waiter {
 public:
  explicit Waiter(const Stream& stream) : stream_(stream) {}

  Status Wait(Deadline deadline) {
    if (Status armed = Arm(); !armed.ok()) return armed;
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return Status(Code::kTimeout, stream_.peer() + " did not answer in time");
      epoll_event event;
      const int count = ::epoll_wait(epoll_.get(), &event, 1, static_cast<int>(std::min<int64_t>(left, 3'600'000)));
      if (count > 0) return {};
      if (count < 0 && errno != EINTR) return SystemError("epoll_wait", errno);
    }
  }

 private:
  Status Arm() {
    if (epoll_) return {};
    epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) return SystemError("epoll_create1", errno);
    for (const int fd : stream_.fds()) {
      epoll_event event{};
      event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return SystemError("epoll_ctl", errno);
    }
    return {};
  }

  const Stream& stream_;
  Fd epoll_;
};

template <typename Step>
Status Repeat(Stream& stream, size_t size, Deadline deadline, Step step) {
  Waiter waiter(stream);
  for (size_t done = 0; done < size;) {
    Result<size_t> moved = step(done);
    if (!moved.ok()) return moved.status();
    done += *moved;
    if (*moved > 0) continue;
    if (Status waited = waiter.Wait(deadline); !waited.ok()) return waited;
  }
  return {};
}

}  // namespace

Status ReadFull(Stream& stream, std::span<std::byte> data, Deadline deadline) {
  return Repeat(stream, data.size(), deadline,
                [&](size_t done) { return stream.Read(data.data() + done, data.size() - done); });
}

Status WriteFull(Stream& stream, std::span<const std::byte> data, Deadline deadline) {
  return Repeat(stream, data.size(), deadline, [&](size_t done) {
    const iovec piece{const_cast<std::byte*>(data.data()) + done, data.size() - done};
    return stream.Write(std::span(&piece, 1));
  });
}

}  // namespace byteps_like
