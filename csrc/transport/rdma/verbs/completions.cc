#include "csrc/transport/rdma/verbs/completions.h"

#include <fcntl.h>

#include <cerrno>

namespace byteps_like::rdma {

using verbs::Lib;

Result<std::unique_ptr<Completions>> Completions::Make(const Device& device, int entries) {
  verbs::CompChannel* const channel = Lib().create_comp_channel(device.context());
  if (channel == nullptr) return SystemError("create a completion channel on " + device.name(), errno);
  ::fcntl(channel->fd, F_SETFL, ::fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  verbs::Cq* const cq = Lib().create_cq(device.context(), entries, nullptr, channel, 0);
  if (cq == nullptr) {
    const Status status = SystemError("create a completion queue on " + device.name(), errno);
    Lib().destroy_comp_channel(channel);
    return status;
  }
  return std::unique_ptr<Completions>(new Completions(channel, cq));
}

Completions::~Completions() {
  Lib().destroy_cq(cq_);
  Lib().destroy_comp_channel(channel_);
}

void Completions::Arm() {
  if (armed_) return;
  armed_ = verbs::Arm(cq_) == 0;
}

void Completions::TakeEvents() {
  verbs::Cq* cq = nullptr;
  void* context = nullptr;
  unsigned count = 0;
  while (Lib().get_cq_event(channel_, &cq, &context) == 0) ++count;
  if (count == 0) return;
  Lib().ack_cq_events(cq_, count);
  armed_ = false;
}

}  // namespace byteps_like::rdma
