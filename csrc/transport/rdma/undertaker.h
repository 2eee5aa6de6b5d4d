// The end of an endpoint, off the loop: system calls that wait for the device, and the wait for sent messages to
// arrive.
#pragma once

#include <memory>

#include "csrc/transport/rdma/endpoint.h"

namespace byteps_like::rdma {

// Returns at once. With `linger`, messages under way get a few seconds to be acknowledged before the connection is
// closed. Without it, the endpoint has failed or was made to fail.
void Bury(std::unique_ptr<Endpoint> endpoint, bool linger);

}  // namespace byteps_like::rdma
