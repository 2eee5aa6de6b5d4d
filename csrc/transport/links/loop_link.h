// The base of links on an event loop: they wake for events on their descriptors, take turns, and end once. Subclasses
// send and receive the frames.
#pragma once

#include <string>
#include <vector>

#include "csrc/transport/counter.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/loop/event_loop.h"

namespace byteps_like {

// How many bytes a link may handle, each way, before the other links of its loop get their turn.
inline constexpr size_t kTurnBytes = 1u << 20;

class LoopLink : public Link, private EventLoop::Deferred {
 public:
  void Start() final;
  void Kick() final;
  void Close(const Status& why) final;
  LinkCounters counters() const override;
  std::string peer() const final { return peer_; }

 protected:
  LoopLink(EventLoop& loop, LinkHandler& handler, std::string peer, std::vector<int> fds)
      : loop_(loop), handler_(handler), peer_(std::move(peer)), fds_(std::move(fds)) {}

  virtual Status Begin() { return {}; }  // the descriptors are watched
  virtual void OnEvent(int fd) = 0;      // it has an event; a turn follows
  virtual bool Turn() = 0;               // some work both ways; true: there is more, or there may be
  virtual bool may_send() const { return true; }
  virtual void Stop() {}        // at once: nothing more lands in memory of the handler's. Again is nothing.
  virtual void Disconnect() {}  // the link is over: before OnClosed, which may destroy it
  virtual const Traffic& sent() const = 0;
  virtual const Traffic& received() const = 0;
  virtual bool said_goodbye() const = 0;  // either side

  // The link is over by itself; `gone`: since the peer is. It may have said that it goes.
  void Fail(const Status& why, bool gone, const std::string& without_goodbye);
  void Again() { loop_.Defer(*this); }
  // The loop doesn't call it any more; idempotent. Of the most derived class's destructor, first: the descriptors are
  // its.
  void Leave();

  EventLoop& loop_;
  LinkHandler& handler_;
  const std::string peer_;
  bool wants_to_send_ = false;  // the handler has not said "nothing now" since the last Kick
  bool stopping_ = false;

 private:
  void RunDeferred() final;

  const std::vector<int> fds_;
  bool started_ = false;
  Status why_;
};

}  // namespace byteps_like
