#include "csrc/transport/rdma/verbs/cm.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "csrc/transport/tcp/listen_socket.h"

namespace byteps_like::rdma {
namespace {

using verbs::Lib;

constexpr int kNobodyListens = 8;  // IB_CM_REJ_INVALID_SERVICE_ID, the status of a rejection

}  // namespace

Status Unexpected(const verbs::CmEvent& event, const std::string& what) {
  if (event.event == verbs::kRejected && event.status == kNobodyListens) return SystemError(what, ECONNREFUSED);
  if (event.status == -ETIMEDOUT) return Status(Code::kTimeout, what + ": no answer in time");
  if (event.event == verbs::kUnreachable) return SystemError(what, EHOSTUNREACH);
  const std::string why = std::string(verbs::NameOf(event.event)) + ", status " + std::to_string(event.status);
  return event.status < 0 ? SystemError(what + ": " + why, -event.status) : Status(Code::kSystem, what + ": " + why);
}

Result<CmChannel> MakeCmChannel() {
  CmChannel channel(Lib().cm_create_event_channel());
  if (channel == nullptr) return SystemError("open /dev/infiniband/rdma_cm", errno);
  ::fcntl(channel->fd, F_SETFL, ::fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  return channel;
}

Result<CmId> MakeCmId(const CmChannel& channel) {
  verbs::CmId* id = nullptr;
  if (Lib().cm_create_id(channel.get(), &id, nullptr, verbs::kPortSpaceTcp) != 0) {
    return SystemError("create an rdma_cm identifier", errno);
  }
  return CmId(id);
}

CmEvent NextCmEvent(const CmChannel& channel) {
  verbs::CmEvent* event = nullptr;
  return Lib().cm_get_event(channel.get(), &event) == 0 ? CmEvent(event) : nullptr;
}

Result<CmEvent> AwaitCmEvent(const CmChannel& channel, const std::string& what, Deadline deadline) {
  for (;;) {
    if (CmEvent event = NextCmEvent(channel)) return event;
    auto ready = PollUntil(channel->fd, POLLIN, deadline);
    if (!ready.ok()) return ready.status();
    if (!*ready) return Status(Code::kTimeout, what + ": no answer in time");
  }
}

Result<CmEvent> AwaitCmEvent(const CmChannel& channel, verbs::CmEventType expected, const std::string& what,
                             Deadline deadline) {
  auto event = AwaitCmEvent(channel, what, deadline);
  if (event.ok() && (*event)->event != expected) return Unexpected(**event, what);
  return event;
}

}  // namespace byteps_like::rdma
