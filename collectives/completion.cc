#include "collectives/completion.h"

#include <utility>

namespace byteps_like {

void CompletionQueue::Push(uint64_t token) {
  std::lock_guard lock(mutex_);
  tokens_.push_back(token);
  changed_.notify_one();
}

std::optional<uint64_t> CompletionQueue::Pop(Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return closed_ || !tokens_.empty(); });
  if (tokens_.empty()) return std::nullopt;
  const uint64_t token = tokens_.front();
  tokens_.pop_front();
  return token;
}

void CompletionQueue::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

EventLoop* LoopGate::Enter() {
  inside_.fetch_add(1);
  if (!closed_) return loop_;
  Leave();
  return nullptr;
}

void LoopGate::Leave() {
  if (inside_.fetch_sub(1) == 1 && closed_) inside_.notify_all();
}

void LoopGate::Close() {
  closed_ = true;
  for (int inside = inside_; inside != 0; inside = inside_) inside_.wait(inside);
}

bool Completion::Wait(Deadline deadline) {
  if (done()) return true;
  std::unique_lock lock(mutex_);
  ++sleepers_;
  const bool ended = changed_.wait_until(lock, deadline, [&] { return done(); });
  --sleepers_;
  return ended;
}

bool Completion::WaitDriving(LoopGate* gate, Deadline deadline) {
  if (done()) return true;
  EventLoop* const loop = gate != nullptr ? gate->Enter() : nullptr;
  if (loop == nullptr) return Completion::Wait(deadline);
  const bool ended = loop->Drive([this] { return done(); }, deadline, [&] { return Completion::Wait(deadline); });
  gate->Leave();
  return ended;
}

void Completion::NotifyTo(std::shared_ptr<CompletionQueue> queue, uint64_t token) {
  {
    std::lock_guard lock(mutex_);
    if (!done()) {
      told_.emplace_back(std::move(queue), token);
      return;
    }
  }
  queue->Push(token);
}

void Completion::Finish(const Status& status) {
  decltype(told_) told;
  {
    std::lock_guard lock(mutex_);
    status_ = status;
    done_.store(true, std::memory_order_release);
    told.swap(told_);
    if (sleepers_ > 0) changed_.notify_all();
  }
  for (const auto& [queue, token] : told) queue->Push(token);
}

}  // namespace byteps_like
