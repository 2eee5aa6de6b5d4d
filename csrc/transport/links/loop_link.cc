#include "csrc/transport/links/loop_link.h"

namespace byteps_like {

void LoopLink::Start() {
  if (stopping_) return;
  started_ = true;
  for (const int fd : fds_) {
    const Status watched = loop_.Watch(fd, [this, fd] {
      OnEvent(fd);
      RunDeferred();
    });
    if (!watched.ok()) return Close(watched);
  }
  if (Status begun = Begin(); !begun.ok()) return Close(begun);
  Kick();
}

void LoopLink::Kick() {
  wants_to_send_ = true;
  if (started_ && may_send()) Again();
}

void LoopLink::Close(const Status& why) {
  if (stopping_) return;
  stopping_ = true;
  why_ = why;
  Stop();
  Again();
}

void LoopLink::Fail(const Status& why, bool gone, const std::string& without_goodbye) {
  if (stopping_) return;
  stopping_ = true;
  why_ = why;
  Stop();
  if (gone && said_goodbye()) {
    why_ = Status(Code::kClosed, peer_ + " closed the link after a goodbye");
  } else if (gone) {
    why_ = Status(Code::kPeerLost, without_goodbye);
  }
}

// A turn. Ends with OnClosed if the link is over: nothing may follow, `this` may be gone.
void LoopLink::RunDeferred() {
  const bool more = !stopping_ && Turn();
  if (stopping_) {
    Leave();
    Disconnect();
    return handler_.OnClosed(*this, Status(why_));
  }
  if (more) Again();
}

void LoopLink::Leave() {
  loop_.Forget(*this);
  if (started_) {
    for (const int fd : fds_) loop_.Unwatch(fd);
  }
  started_ = false;
}

LinkCounters LoopLink::counters() const {
  LinkCounters counters;
  counters.frames_sent = sent().frames.get();
  counters.frames_received = received().frames.get();
  counters.bytes_sent = sent().bytes.get();
  counters.bytes_received = received().bytes.get();
  counters.payload_sent = sent().payload.get();
  counters.payload_received = received().payload.get();
  return counters;
}

}  // namespace byteps_like
