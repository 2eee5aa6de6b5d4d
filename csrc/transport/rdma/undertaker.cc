#include "csrc/transport/rdma/undertaker.h"

#include <poll.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace byteps_like::rdma {
namespace {

constexpr auto kLinger = std::chrono::seconds(5);
constexpr auto kAtExit = std::chrono::seconds(2);  // for all together
constexpr int kLookMilliseconds = 100;

void Linger(Endpoint& endpoint) {
  std::vector<pollfd> polled;
  for (const int fd : endpoint.fds()) polled.push_back({fd, POLLIN, 0});
  const Deadline limit = Clock::now() + kLinger;
  endpoint.Poll();
  while (endpoint.failure().ok() && endpoint.under_way() > 0 && Clock::now() < limit) {
    endpoint.TakeEvents();
    if (endpoint.Sleep()) ::poll(polled.data(), polled.size(), kLookMilliseconds);
  }
}

void Finish(Endpoint* endpoint, bool linger) {
  if (linger) Linger(*endpoint);
  endpoint->Fail();
  delete endpoint;
}

// How many are under way. At the process's exit the libraries close their devices: nobody may be inside by then, and
// what lingers should still arrive.
class Count {
 public:
  static Count& Get() {
    static auto* const only = [] {
      std::atexit([] { Get().AwaitNone(); });
      return new Count;
    }();
    return *only;
  }
  void Add(int more) {
    std::lock_guard lock(mutex_);
    under_way_ += more;
    changed_.notify_all();
  }
  void AwaitNone() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kAtExit, [this] { return under_way_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int under_way_ = 0;
};

}  // namespace

void Bury(std::unique_ptr<Endpoint> endpoint, bool linger) {
  endpoint->SetUser(nullptr);
  Count::Get().Add(1);
  Endpoint* const buried = endpoint.release();
  const auto finish = [buried, linger] {
    Finish(buried, linger);
    Count::Get().Add(-1);
  };
  try {
    std::thread(finish).detach();
  } catch (const std::system_error&) {  // no more threads to be had
    finish();
  }
}

}  // namespace byteps_like::rdma
