// The completion of one collective, send or receive in flight, on which a caller waits. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/thread.h"
#include "csrc/transport/loop/event_loop.h"

namespace byteps_like {

// Operations that have ended, for a thread that tells others (futures, callbacks).
class CompletionQueue {
 public:
  void Push(uint64_t token);
  std::optional<uint64_t> Pop(Deadline deadline);  // blocks; nothing at the deadline, or at once after Close
  void Close();

 private:
  std::mutex mutex_;
  ConditionVariable changed_;
  std::deque<uint64_t> tokens_;
  bool closed_ = false;
};

// The way from completions, which outlive it, to the loop that works for them.
class LoopGate {
 public:
  explicit LoopGate(EventLoop& loop) : loop_(&loop) {}
  EventLoop* Enter();  // nullptr: closed; else Leave must follow
  void Leave();
  void Close();  // blocks until all have left; call it once the operation has ended

 private:
  EventLoop* const loop_;
  std::atomic<bool> closed_{false};
  std::atomic<int> inside_{0};
};

class Completion : public std::enable_shared_from_this<Completion> {  // so that owners in Python are owners here
 public:
  virtual ~Completion() = default;
  bool done() const { return done_.load(std::memory_order_acquire); }
  const Status& status() const { return status_; }  // once done
  uint32_t source() const { return source_; }       // of a receive from any rank: group rank, once done
  uint64_t bytes() const { return bytes_; }         // of a receive: bytes received, once done

  // Blocks until done (true) or the deadline (false). An implementation that can make progress by itself does so here,
  // on the caller's thread, before it sleeps: a wake-up costs 25 us.
  virtual bool Wait(Deadline deadline);

  // Pushes `token` when it ends, at once if it has. May be called several times: each token is pushed once.
  void NotifyTo(std::shared_ptr<CompletionQueue> queue, uint64_t token);

 protected:
  void Finish(const Status& status);  // once
  // Wait, driving the loop that the completion comes from meanwhile (EventLoop::Drive). Without a gate: only waits.
  bool WaitDriving(LoopGate* gate, Deadline deadline);
  uint32_t source_ = 0;
  uint64_t bytes_ = 0;

 private:
  std::atomic<bool> done_{false};
  std::atomic<int> sleepers_{0};
  Status status_;
  std::mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::pair<std::shared_ptr<CompletionQueue>, uint64_t>> told_;
};

}  // namespace byteps_like
