#include "csrc/gpu/direct_memory.h"

#include <unistd.h>

namespace byteps_like {

Result<RegisteredMemory> RegisterDirect(const Gpu& gpu, cuda::DeviceAddress address, size_t bytes) {
  if (gpu.api().MemGetRangeHandle == nullptr) {
    return Status(Code::kDevice, gpu.driver().path() + " has no cuMemGetHandleForAddressRange: it lends no dma-bufs");
  }
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const cuda::DeviceAddress begin = address / page * page;
  const cuda::DeviceAddress end = (address + bytes + page - 1) / page * page;
  int fd = -1;
  const Status status = gpu.Check(gpu.api().MemGetRangeHandle(&fd, begin, end - begin, cuda::kRangeDmaBuf, 0),
                                  "cuMemGetHandleForAddressRange (dma-bufs take NVIDIA's open kernel modules)");
  if (!status.ok()) return status;
  return RegisteredMemory(reinterpret_cast<std::byte*>(address), bytes, {Fd(fd), address - begin});
}

}  // namespace byteps_like
