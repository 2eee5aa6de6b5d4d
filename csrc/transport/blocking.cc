// The blocking helpers of stream.h: a poller of their own stands in for the loop.
#include <algorithm>
#include <array>
#include <memory>

#include "csrc/transport/loop/poller.h"
#include "csrc/transport/stream.h"

namespace byteps_like {
namespace {

// Waits for edges on a stream's descriptors. Made only when a call found nothing to do.
class Waiter {
 public:
  explicit Waiter(const Stream& stream) : stream_(stream) {}

  Status Wait(Deadline deadline) {
    if (Status armed = Arm(); !armed.ok()) return armed;
    std::array<uint64_t, 1> tag;
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return Status(Code::kTimeout, stream_.peer() + " did not answer in time");
      if (poller_->Wait(tag, static_cast<int>(std::min<int64_t>(left, 3'600'000))) > 0) return {};
    }
  }

 private:
  Status Arm() {
    if (poller_ != nullptr) return {};
    auto poller = Poller::Make();
    if (!poller.ok()) return poller.status();
    poller_ = std::move(*poller);
    for (const int fd : stream_.fds())
      if (Status watched = poller_->Watch(fd, 0); !watched.ok()) return watched;
    return {};
  }

  const Stream& stream_;
  std::unique_ptr<Poller> poller_;
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
