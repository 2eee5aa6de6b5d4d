// RAII over rdma_cm: the channel that events come through, and the identifiers that stand for one queue pair's
// connection each.
#pragma once

#include <memory>
#include <string>

#include "csrc/transport/rdma/verbs/verbs.h"
#include "csrc/transport/stream.h"

namespace byteps_like::rdma {

struct CmChannelDeleter {
  void operator()(verbs::CmChannel* channel) const { verbs::Lib().cm_destroy_event_channel(channel); }
};
using CmChannel = std::unique_ptr<verbs::CmChannel, CmChannelDeleter>;

struct CmIdDeleter {
  void operator()(verbs::CmId* id) const { verbs::Lib().cm_destroy_id(id); }
};
// Must end before its channel does. Its queue pair is ours (QueuePair), not rdma_cm's.
using CmId = std::unique_ptr<verbs::CmId, CmIdDeleter>;

struct CmEventDeleter {
  void operator()(verbs::CmEvent* event) const { verbs::Lib().cm_ack_event(event); }
};
using CmEvent =
    std::unique_ptr<verbs::CmEvent, CmEventDeleter>;  // an identifier can't end while one of its events lives

Result<CmChannel> MakeCmChannel();  // non-blocking
Result<CmId> MakeCmId(const CmChannel& channel);

// The error that an unexpected event stands for: kSystem, "connection refused" for a rejection; kTimeout.
Status Unexpected(const verbs::CmEvent& event, const std::string& what);
CmEvent NextCmEvent(const CmChannel& channel);  // nullptr: there is none
// Waits for the next event of a channel with one identifier; kTimeout after the deadline.
Result<CmEvent> AwaitCmEvent(const CmChannel& channel, const std::string& what, Deadline deadline);
// Likewise, and any but `expected` is an error, as Unexpected says.
Result<CmEvent> AwaitCmEvent(const CmChannel& channel, verbs::CmEventType expected, const std::string& what,
                             Deadline deadline);

}  // namespace byteps_like::rdma
