#include "csrc/transport/loop/poller.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "csrc/base/fd.h"
#include "csrc/base/simulation.h"
#include "csrc/transport/loop/simulated_poller.h"

namespace byteps_like {
namespace {

void Ring(const Fd& fd) {
  const uint64_t one = 1;
  // Can only fail by overflow of the counter, and then it has been rung.
  [[maybe_unused]] const ssize_t written = ::write(fd.get(), &one, sizeof(one));
}

class KernelPoller final : public Poller {
 public:
  Status Open() {
    for (Fd* const fd : {&nudge_, &wake_}) {
      fd->Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!*fd) return SystemError("event loop: eventfd", errno);
    }
    epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) return SystemError("event loop: epoll_create1", errno);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = kWoken;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0) return {};
    return SystemError("event loop: epoll_ctl", errno);
  }

  Status Watch(int fd, uint64_t tag) override {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u64 = tag;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
    return SystemError("watch a descriptor", errno);
  }

  void Unwatch(int fd) override { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

  size_t Wait(std::span<uint64_t> tags, int milliseconds) override {
    std::array<epoll_event, kMostAtOnce> events;
    const auto most = static_cast<int>(std::min(tags.size(), events.size()));
    const int count = ::epoll_wait(epoll_.get(), events.data(), most, milliseconds);
    for (int i = 0; i < count; ++i) tags[static_cast<size_t>(i)] = events[static_cast<size_t>(i)].data.u64;
    return static_cast<size_t>(std::max(count, 0));
  }

  void Look(int milliseconds) override {
    pollfd fds[] = {{epoll_.get(), POLLIN, 0}, {nudge_.get(), POLLIN, 0}};
    ::poll(fds, 2, milliseconds);
    if (fds[1].revents == 0) return;
    uint64_t count;
    [[maybe_unused]] const ssize_t taken = ::read(nudge_.get(), &count, sizeof(count));
  }

  void Wake() override { Ring(wake_); }
  void Nudge() override { Ring(nudge_); }

 private:
  Fd epoll_;
  Fd wake_;
  Fd nudge_;  // ends Look
};

}  // namespace

Result<std::unique_ptr<Poller>> Poller::Make() {
  if (TheSimulation() != nullptr) return std::unique_ptr<Poller>(std::make_unique<SimulatedPoller>(*TheSimulation()));
  auto poller = std::make_unique<KernelPoller>();
  if (Status opened = poller->Open(); !opened.ok()) return opened;
  return std::unique_ptr<Poller>(std::move(poller));
}

}  // namespace byteps_like
