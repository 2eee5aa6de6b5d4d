// A completion queue and the channel that announces its completions.
#pragma once

#include <memory>

#include "csrc/transport/rdma/verbs/device.h"

namespace byteps_like::rdma {

class Completions {
 public:
  // For `entries` work requests that may be outstanding at once.
  static Result<std::unique_ptr<Completions>> Make(const Device& device, int entries);
  ~Completions();

  verbs::Cq* cq() const { return cq_; }
  int fd() const { return channel_->fd; }  // readable when there is an event; non-blocking

  int Poll(verbs::Wc* to, int most) { return verbs::PollCq(cq_, most, to); }

  // Asks for one event at the next completion, unless one is requested already. Poll again afterwards: earlier
  // completions cause no event.
  void Arm();
  void TakeEvents();  // after fd() was readable

 private:
  Completions(verbs::CompChannel* channel, verbs::Cq* cq) : channel_(channel), cq_(cq) {}

  verbs::CompChannel* const channel_;
  verbs::Cq* const cq_;
  bool armed_ = false;
};

}  // namespace byteps_like::rdma
