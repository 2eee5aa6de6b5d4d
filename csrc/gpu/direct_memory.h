// GPUDirect: device memory that RDMA devices of this host read and write themselves, without its mirror.
#pragma once

#include "csrc/gpu/gpu.h"
#include "csrc/transport/memory/registered_memory.h"

namespace byteps_like {

// Enters device memory into the registry, with the dma-buf that the driver lends for it: whole pages around it, all of
// one allocation, which the caller keeps until the registration is gone. The first RDMA device that is asked for its
// keys maps it (rdma::RegisterDmaBuf). kDevice, with the reason: the driver is older than 11.7, is not the open kernel
// module, or the device can't. Its mirror is used then.
Result<RegisteredMemory> RegisterDirect(const Gpu& gpu, cuda::DeviceAddress address, size_t bytes);

}  // namespace byteps_like
