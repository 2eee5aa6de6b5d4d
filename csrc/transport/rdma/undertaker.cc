#include "csrc/transport/rdma/undertaker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "csrc/base/thread.h"

namespace byteps_like::rdma {
namespace {

constexpr auto kLinger = std::chrono::seconds(5);
constexpr auto kAtExit = std::chrono::seconds(2);  // for all together
constexpr int kLookMilliseconds = 100;
constexpr size_t kMostGraves = 64;  // only connections that are no links yet linger: they may be strangers'

struct Grave {
  std::unique_ptr<Endpoint> endpoint;
  Deadline until;  // for messages under way to arrive
};

bool Lingers(const Grave& grave) {
  return grave.endpoint->failure().ok() && grave.endpoint->under_way() > 0 && Clock::now() < grave.until;
}

bool EndsLater(const Grave& a, const Grave& b) { return a.until > b.until; }

// One thread for all of the process, begun with the first: however many links end at once, those that linger do so side
// by side. Never destroyed.
class Undertaker {
 public:
  static Undertaker& Get() {
    static auto* const only = [] {
      // The libraries close their devices at exit: no thread may be inside them then, and lingering messages should
      // still arrive.
      std::atexit([] { Get().AwaitNone(); });
      return new Undertaker;
    }();
    return *only;
  }

  // False: there is no thread, and none to be had.
  bool Take(Grave& grave) {
    std::lock_guard lock(mutex_);
    if (!Begin()) return false;
    brought_.push_back(std::move(grave));
    ++under_way_;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(bell_.get(), &one, sizeof(one));
    return true;
  }

 private:
  bool Begin() {
    if (begun_) return true;
    bell_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!bell_) return false;
    auto thread = StartThread("to end links with", [this] { Run(); });
    if (!thread.ok()) return false;
    thread->detach();
    return begun_ = true;
  }

  [[noreturn]] void Run() {
    for (;;) {
      Fetch();
      const bool asleep = Look();
      const int most = graves_.empty() ? -1 : kLookMilliseconds;
      ::poll(polled_.data(), polled_.size(), asleep ? most : 0);
    }
  }

  void Fetch() {
    uint64_t rung = 0;
    [[maybe_unused]] const ssize_t got = ::read(bell_.get(), &rung, sizeof(rung));
    std::lock_guard lock(mutex_);
    for (Grave& grave : brought_) graves_.push_back(std::move(grave));
    brought_.clear();
    if (graves_.size() > kMostGraves) std::sort(graves_.begin(), graves_.end(), EndsLater);
    for (size_t i = kMostGraves; i < graves_.size(); ++i) graves_[i].until = {};
  }

  // Ends the connections that are over; true if an event follows once there is more to do.
  bool Look() {
    polled_.assign(1, {bell_.get(), POLLIN, 0});
    bool asleep = true;
    for (size_t i = 0; i < graves_.size();) {
      Endpoint& endpoint = *graves_[i].endpoint;
      if (Lingers(graves_[i])) {
        endpoint.TakeEvents();
        asleep = endpoint.Sleep() && asleep;
        for (const int fd : endpoint.fds()) polled_.push_back({fd, POLLIN, 0});
        ++i;
        continue;
      }
      endpoint.Fail();
      std::swap(graves_[i], graves_.back());
      graves_.pop_back();
      std::lock_guard lock(mutex_);
      if (--under_way_ == 0) none_.notify_all();
    }
    return asleep;
  }

  void AwaitNone() {
    std::unique_lock lock(mutex_);
    none_.wait_for(lock, kAtExit, [this] { return under_way_ == 0; });
  }

  std::mutex mutex_;  // guards these:
  std::condition_variable none_;
  std::vector<Grave> brought_;
  size_t under_way_ = 0;
  bool begun_ = false;

  Fd bell_;
  std::vector<Grave> graves_;  // of the thread, like the members below
  std::vector<pollfd> polled_;
};

}  // namespace

void Bury(std::unique_ptr<Endpoint> endpoint, bool linger) {
  endpoint->SetUser(nullptr);
  if (!linger) endpoint->Fail();
  Grave grave{std::move(endpoint), Clock::now() + kLinger};
  if (Undertaker::Get().Take(grave)) return;
  while (Lingers(grave)) grave.endpoint->Await(grave.until);
  grave.endpoint->Fail();
}

}  // namespace byteps_like::rdma

#include "csrc/base/thread.h"