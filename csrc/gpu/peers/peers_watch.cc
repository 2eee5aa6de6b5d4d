// The watch of GpuPeers: what streams wait for is in the hands of other processes, so somebody has to see that they
// live and come.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "csrc/gpu/peers/peers_group.h"

namespace byteps_like {
namespace {

constexpr uint32_t kFar = 1u << 30;     // meetings ahead: no stream waits for these
constexpr int kCalm = 100, kHurry = 2;  // milliseconds from one look to the next

bool Behind(uint32_t step, uint32_t other) { return static_cast<int32_t>(step - other) < 0; }

}  // namespace

std::string GpuPeers::Named(uint32_t rank) const {
  return "local rank " + std::to_string(rank) + " (pid " + std::to_string(options_.pids[rank]) + ")";
}

Status GpuPeers::WatchPids() {
  deaths_.resize(size());
  dead_.assign(size(), false);
  for (uint32_t rank = 0; rank < size(); ++rank) {
    if (rank == options_.rank || options_.pids[rank] <= 0 || options_.pids[rank] == ::getpid()) continue;
    deaths_[rank].Reset(static_cast<int>(::syscall(SYS_pidfd_open, options_.pids[rank], 0)));
    if (!deaths_[rank] && errno == ESRCH) return Status(Code::kPeerLost, Named(rank) + " has died");
  }  // where the kernel has no pidfd, the timeout finds out
  return {};
}

Status GpuPeers::status() const {
  std::lock_guard lock(mutex_);
  return StatusNow();
}

Status GpuPeers::StatusNow() const {
  if (!failure_.ok()) return failure_;
  for (uint32_t rank = 0; rank < size(); ++rank) {
    if (rank == options_.rank) continue;
    // Before it has streams go on, a rank that fails says so.
    if (page_->state(rank) == PeerState::kFailed)
      return Status(Code::kPeerLost, Named(rank) +
                                         " has given up a reduction among the GPUs of this host; its own"
                                         " error says why");
  }
  return {};
}

void GpuPeers::Fail(Status why) {
  std::lock_guard lock(mutex_);
  FailNow(std::move(why));
}

void GpuPeers::FailNow(Status why) {
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  page_->set_state(options_.rank, PeerState::kFailed);
  Wake();
}

void GpuPeers::Wake() const {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

bool GpuPeers::Flying() const {
  for (const Lane& lane : lanes_)
    if (lane.issuing || lane.flying) return true;
  return false;
}

void GpuPeers::Watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    std::vector<pollfd> wanted{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    std::vector<uint32_t> ranks{options_.rank};
    for (uint32_t rank = 0; rank < size(); ++rank) {
      if (!deaths_[rank] || dead_[rank]) continue;
      wanted.push_back({.fd = deaths_[rank].get(), .events = POLLIN, .revents = 0});
      ranks.push_back(rank);
    }
    const int pause = !Flying() ? -1 : closing_ || !failure_.ok() ? kHurry : kCalm;
    lock.unlock();
    (void)::poll(wanted.data(), wanted.size(), pause);
    uint64_t woken = 0;
    (void)!::read(wake_.get(), &woken, sizeof woken);
    lock.lock();
    for (size_t i = 1; i < wanted.size(); ++i)
      if (wanted[i].revents != 0) OnDeath(ranks[i]);
    Look();
  }
}

void GpuPeers::OnDeath(uint32_t rank) {
  dead_[rank] = true;
  if (page_->state(rank) == PeerState::kLeft) return;
  FailNow(Status(Code::kPeerLost, Named(rank) + " has died: reductions among the GPUs of this host end"));
}

void GpuPeers::Look() {
  if (failure_.ok()) {
    Status seen = StatusNow();
    if (!seen.ok()) FailNow(std::move(seen));
  }
  for (uint32_t number = 0; number < PeersPage::kLanes; ++number)
    if (lanes_[number].issuing || lanes_[number].flying) LookAt(number, std::chrono::steady_clock::now());
  if (!Flying()) landed_.notify_all();
}

void GpuPeers::LookAt(uint32_t number, Time now) {
  Lane& lane = lanes_[number];
  if (!lane.issuing) {
    auto done = lane.last->Done();
    if (!done.ok()) FailNow(done.status());
    lane.flying = done.ok() && !*done;
    if (!lane.flying) return;
  }
  const uint32_t own = page_->step(number, options_.rank);
  if (own != lane.seen) lane.since = now;
  lane.seen = own;
  const double waited = std::chrono::duration<double>(now - lane.since).count();
  for (uint32_t rank = 0; rank < size(); ++rank) {
    if (rank == options_.rank) continue;
    // Again and again: a rank that still runs may write its own step once more, which is lower.
    if (!failure_.ok()) {
      page_->set_step(number, rank, lane.step + kFar);
    } else if (Behind(page_->step(number, rank), own)) {
      if (page_->state(rank) == PeerState::kLeft)
        FailNow(Status(Code::kClosed, Named(rank) + " has left while GPUs of this host wait for it"));
      else if (waited > options_.timeout)
        FailNow(Status(Code::kTimeout, Named(rank) + " has not come to a reduction among the GPUs of this host for " +
                                           std::to_string(static_cast<int>(waited)) +
                                           " s: do all ranks make the same calls in the same order?"));
    }
  }
}

}  // namespace byteps_like
