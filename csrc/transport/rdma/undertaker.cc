#include "csrc/transport/rdma/undertaker.h"

#include <poll.h>

#include <thread>
#include <vector>

namespace byteps_like::rdma {
namespace {

constexpr auto kLinger = std::chrono::seconds(5);
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

}  // namespace

void Bury(std::unique_ptr<Endpoint> endpoint, bool linger) {
  endpoint->SetUser(nullptr);
  std::thread([endpoint = std::move(endpoint), linger]() mutable {
    if (linger) Linger(*endpoint);
    endpoint->Fail();
    endpoint.reset();
  }).detach();
}

}  // namespace byteps_like::rdma
