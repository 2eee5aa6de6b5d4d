#include "csrc/gpu/memory.h"

#include <cstring>

namespace byteps_like {
namespace {

struct Exported {  // between processes of one host and one build
  cuda::IpcHandle handle;
  uint64_t offset, bytes;
};

std::string Sized(std::string_view what, size_t bytes) {
  return std::string(what) + " of " + std::to_string(bytes) + " bytes";
}

}  // namespace

GpuMemory::GpuMemory(std::shared_ptr<Gpu> gpu, cuda::DeviceAddress base, size_t offset, size_t bytes, bool own)
    : gpu_(std::move(gpu)), base_(base), offset_(offset), bytes_(bytes), own_(own) {
  if (own_) gpu_->held_ += bytes_;
}

Result<std::unique_ptr<GpuMemory>> GpuMemory::Allocate(std::shared_ptr<Gpu> gpu, size_t bytes) {
  const CurrentContext current(*gpu);
  if (!current.status().ok()) return current.status();
  cuda::DeviceAddress base = 0;
  const cuda::Outcome outcome = gpu->api().MemAlloc(&base, bytes);
  if (outcome != cuda::kSuccess) return gpu->Check(outcome, Sized("cuMemAlloc", bytes));
  return std::unique_ptr<GpuMemory>(new GpuMemory(std::move(gpu), base, 0, bytes, true));
}

Result<std::unique_ptr<GpuMemory>> GpuMemory::Open(std::shared_ptr<Gpu> gpu, std::string_view exported) {
  Exported about;
  if (exported.size() != sizeof about) return Status(Code::kInvalid, "this is no exported device memory");
  std::memcpy(&about, exported.data(), sizeof about);
  const CurrentContext current(*gpu);
  if (!current.status().ok()) return current.status();
  cuda::DeviceAddress base = 0;
  const Status status = gpu->Check(gpu->api().IpcOpenMemHandle(&base, about.handle, cuda::kLazyPeerAccess),
                                   "cuIpcOpenMemHandle (is the process that exported it alive?)");
  if (!status.ok()) return status;
  return std::unique_ptr<GpuMemory>(new GpuMemory(std::move(gpu), base, about.offset, about.bytes, false));
}

GpuMemory::~GpuMemory() {
  const CurrentContext current(*gpu_);
  (void)(own_ ? gpu_->api().MemFree(base_) : gpu_->api().IpcCloseMemHandle(base_));
  if (own_) gpu_->held_ -= bytes_;
}

Result<std::string> ExportMemory(const Gpu& gpu, cuda::DeviceAddress address) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  Exported about{};
  cuda::DeviceAddress base = 0;
  size_t bytes = 0;
  Status status = gpu.Check(gpu.api().MemGetAddressRange(&base, &bytes, address), "cuMemGetAddressRange");
  if (status.ok()) status = gpu.Check(gpu.api().IpcGetMemHandle(&about.handle, base), "cuIpcGetMemHandle");
  if (!status.ok()) return status;
  about.offset = address - base;
  about.bytes = bytes - about.offset;
  return std::string(reinterpret_cast<const char*>(&about), sizeof about);
}

Result<int> DeviceOf(const Gpu& gpu, cuda::DeviceAddress address) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  int32_t ordinal = -1;
  const cuda::Outcome outcome = gpu.api().PointerGetAttribute(&ordinal, cuda::kPointerDevice, address);
  if (outcome == cuda::kInvalidValue) return Status(Code::kInvalid, "this is no address of device memory");
  const Status status = gpu.Check(outcome, "cuPointerGetAttribute");
  if (!status.ok()) return status;
  return ordinal;
}

Result<std::unique_ptr<PinnedMemory>> PinnedMemory::Lock(std::shared_ptr<Gpu> gpu,
                                                         std::shared_ptr<SharedBuffer> buffer) {
  auto locked = Lock(std::move(gpu), buffer->data(), buffer->size());
  if (locked.ok()) (*locked)->buffer_ = std::move(buffer);
  return locked;
}

Result<std::unique_ptr<PinnedMemory>> PinnedMemory::Lock(std::shared_ptr<Gpu> gpu, std::byte* data, size_t bytes) {
  const CurrentContext current(*gpu);
  if (!current.status().ok()) return current.status();
  const cuda::Outcome outcome = gpu->api().MemHostRegister(data, bytes, cuda::kHostPortable | cuda::kHostDeviceMap);
  if (outcome != cuda::kSuccess) return gpu->Check(outcome, Sized("cuMemHostRegister", bytes));
  return std::unique_ptr<PinnedMemory>(new PinnedMemory(std::move(gpu), data, bytes));
}

PinnedMemory::~PinnedMemory() {
  const CurrentContext current(*gpu_);
  (void)gpu_->api().MemHostUnregister(data_);
}

Result<cuda::DeviceAddress> PinnedMemory::DeviceAddressOf(std::byte* address) const {
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  cuda::DeviceAddress begin = 0;
  const Status status = gpu_->Check(gpu_->api().MemHostGetDevicePointer(&begin, data_, 0), "cuMemHostGetDevicePointer");
  if (!status.ok()) return status;
  return begin + static_cast<uint64_t>(address - data_);
}

}  // namespace byteps_like
