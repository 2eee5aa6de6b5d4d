#include "csrc/transport/loop/simulated_poller.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace byteps_like {
namespace {

constexpr int kFirstNumber = 1 << 30;
constexpr auto kCall = std::chrono::microseconds(10);  // what it takes to ask without waiting: time must go by

thread_local std::unordered_map<int, SimulatedDescriptor*> open_descriptors;
thread_local int last_number = kFirstNumber;

SimulatedDescriptor* Find(int number) {
  const auto found = open_descriptors.find(number);
  return found == open_descriptors.end() ? nullptr : found->second;
}

}  // namespace

SimulatedDescriptor::SimulatedDescriptor() : number_(open_descriptors.empty() ? kFirstNumber : last_number + 1) {
  last_number = number_;
  open_descriptors.emplace(number_, this);
}

SimulatedDescriptor::~SimulatedDescriptor() {
  if (poller_ != nullptr) poller_->OnDescriptorGone(number_);
  open_descriptors.erase(number_);
}

void SimulatedDescriptor::Raise() {
  if (poller_ != nullptr) poller_->OnEdge(number_);
}

SimulatedPoller::~SimulatedPoller() {
  for (const auto& [fd, tag] : tags_)
    if (SimulatedDescriptor* const descriptor = Find(fd)) descriptor->poller_ = nullptr;
}

Status SimulatedPoller::Watch(int fd, uint64_t tag) {
  SimulatedDescriptor* const descriptor = Find(fd);
  if (descriptor == nullptr) return SystemError("watch a descriptor in a simulation", EBADF);
  descriptor->poller_ = this;
  tags_[fd] = tag;
  OnEdge(fd);
  return {};
}

void SimulatedPoller::Unwatch(int fd) {
  if (tags_.erase(fd) == 0) return;
  if (SimulatedDescriptor* const descriptor = Find(fd)) descriptor->poller_ = nullptr;
}

// Events that have come by the time it wakes are told of in any order.
size_t SimulatedPoller::Wait(std::span<uint64_t> tags, int milliseconds) {
  if (milliseconds == 0) {
    simulation_.Block(nullptr, simulation_.Now() + kCall);
  } else if (!has_events()) {
    Sleep(milliseconds);
  }
  size_t count = 0;
  if (std::exchange(woken_, false)) tags[count++] = kWoken;
  while (!edges_.empty() && count < tags.size()) {
    std::swap(edges_[simulation_.Draw(edges_.size())], edges_.back());
    const auto tag = tags_.find(edges_.back());
    edges_.pop_back();
    if (tag != tags_.end()) tags[count++] = tag->second;
  }
  return count;
}

void SimulatedPoller::Look(int milliseconds) {
  if (!has_events() && !nudged_) Sleep(milliseconds);
  nudged_ = false;
}

void SimulatedPoller::Sleep(int milliseconds) {
  const auto until =
      milliseconds < 0 ? Simulation::Time::max() : simulation_.Now() + std::chrono::milliseconds(milliseconds);
  simulation_.Block(this, until);
}

void SimulatedPoller::Wake() {
  woken_ = true;
  simulation_.Wake(this, true);
}

void SimulatedPoller::Nudge() {
  nudged_ = true;
  simulation_.Wake(this, true);
}

void SimulatedPoller::OnEdge(int fd) {
  if (std::ranges::find(edges_, fd) == edges_.end()) edges_.push_back(fd);
  simulation_.Wake(this, true);
}

}  // namespace byteps_like
