// Frames over an rdma connection, without a stream between.
#pragma once

#include <memory>

#include "csrc/transport/links/link.h"
#include "csrc/transport/rdma/endpoint.h"

namespace byteps_like::rdma {

// Takes over a connection on which both ends have read all bytes of the stream before. As MakeLink.
std::unique_ptr<Link> MakeRdmaLink(EventLoop& loop, std::unique_ptr<Endpoint> endpoint, LinkHandler& handler);

}  // namespace byteps_like::rdma
