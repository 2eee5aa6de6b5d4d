// The poller of a simulation, and the descriptors that it can watch: numbers that the kernel never gives out.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "csrc/base/simulation.h"
#include "csrc/transport/loop/poller.h"

namespace byteps_like {

class SimulatedPoller;

// Of a simulated stream. One poller watches it at a time.
class SimulatedDescriptor {
 public:
  SimulatedDescriptor();
  ~SimulatedDescriptor();
  SimulatedDescriptor(const SimulatedDescriptor&) = delete;

  int number() const { return number_; }
  void Raise();  // there is an edge

 private:
  friend class SimulatedPoller;
  const int number_;
  SimulatedPoller* poller_ = nullptr;
};

class SimulatedPoller final : public Poller {
 public:
  explicit SimulatedPoller(Simulation& simulation) : simulation_(simulation) {}
  ~SimulatedPoller() override;

  Status Watch(int fd, uint64_t tag) override;
  void Unwatch(int fd) override;
  size_t Wait(std::span<uint64_t> tags, int milliseconds) override;
  void Look(int milliseconds) override;
  void Wake() override;
  void Nudge() override;

  void OnEdge(int fd);  // of SimulatedDescriptor, as the next
  void OnDescriptorGone(int fd) { tags_.erase(fd); }

 private:
  bool has_events() const { return woken_ || !edges_.empty(); }
  void Sleep(int milliseconds);

  Simulation& simulation_;
  std::unordered_map<int, uint64_t> tags_;  // by descriptor
  std::vector<int> edges_;                  // each once
  bool woken_ = false, nudged_ = false;
};

}  // namespace byteps_like
