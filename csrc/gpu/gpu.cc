#include "csrc/gpu/gpu.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace byteps_like {
namespace {

std::string PciOf(const Driver& driver, cuda::Device device) {
  int32_t domain = 0, bus = 0, slot = 0;
  const auto& api = driver.api();
  const bool known = api.DeviceGetAttribute(&domain, cuda::kPciDomain, device) == cuda::kSuccess &&
                     api.DeviceGetAttribute(&bus, cuda::kPciBus, device) == cuda::kSuccess &&
                     api.DeviceGetAttribute(&slot, cuda::kPciDevice, device) == cuda::kSuccess;
  if (!known) return "";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", static_cast<unsigned>(domain), static_cast<unsigned>(bus),
                static_cast<unsigned>(slot));
  return text.data();
}

std::string HexOf(const cuda::Uuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : uuid.bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<GpuInfo> InfoOf(const Driver& driver, int ordinal) {
  const auto& api = driver.api();
  cuda::Device device = 0;
  Status status = driver.Check(api.DeviceGet(&device, ordinal), "cuDeviceGet of device " + std::to_string(ordinal));
  if (!status.ok()) return status;
  std::array<char, 256> name{};
  cuda::Uuid uuid{};
  size_t bytes = 0;
  status = driver.Check(api.DeviceGetName(name.data(), static_cast<int32_t>(name.size()), device), "cuDeviceGetName");
  if (status.ok()) status = driver.Check(api.DeviceGetUuid(&uuid, device), "cuDeviceGetUuid");
  if (status.ok()) status = driver.Check(api.DeviceTotalMem(&bytes, device), "cuDeviceTotalMem");
  if (!status.ok()) return status;
  return GpuInfo{ordinal, name.data(), PciOf(driver, device), HexOf(uuid), bytes};
}

}  // namespace

Result<std::vector<GpuInfo>> ListGpus(const Driver& driver) {
  int32_t count = 0;
  const Status status = driver.Check(driver.api().DeviceGetCount(&count), "cuDeviceGetCount");
  if (!status.ok()) return status;
  std::vector<GpuInfo> found;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto info = InfoOf(driver, ordinal);
    if (!info.ok()) return info.status();
    found.push_back(std::move(*info));
  }
  return found;
}

Result<std::shared_ptr<Gpu>> Gpu::Open(std::shared_ptr<const Driver> driver, int ordinal, int connections) {
  auto info = InfoOf(*driver, ordinal);
  if (!info.ok()) return info.status();
  std::shared_ptr<Gpu> gpu(new Gpu(std::move(driver), std::move(*info), connections));
  Status status = gpu->Check(gpu->api().PrimaryContextRetain(&gpu->context_, ordinal), "cuDevicePrimaryCtxRetain");
  if (!status.ok()) return status;
  const CurrentContext current(*gpu);
  if (!current.status().ok()) return current.status();
  int32_t least = 0;
  status = gpu->Check(gpu->api().ContextStreamPriorities(&least, &gpu->urgency_), "cuCtxGetStreamPriorityRange");
  if (!status.ok()) return status;
  int32_t shared = 0;
  status = gpu->Check(gpu->api().DeviceGetAttribute(&shared, cuda::kMostShared, ordinal), "cuDeviceGetAttribute");
  if (!status.ok()) return status;
  gpu->most_shared_ = static_cast<uint32_t>(std::max(shared, 48 * 1024));  // which every device has
  return gpu;
}

Gpu::~Gpu() {
  if (context_ != nullptr) (void)api().PrimaryContextRelease(info_.ordinal);
}

std::string Gpu::WhyNoWaits() const {
  if (api().StreamWaitValue == nullptr) return driver_->path() + " has no cuStreamWaitValue32_v2; update it";
  if (connections_ == 0)
    return "CUDA_LAUNCH_BLOCKING has whoever launches wait for the device, and so who would end the wait; unset it";
  if (connections_ < kLeastConnections)
    return "CUDA_DEVICE_MAX_CONNECTIONS=" + std::to_string(connections_) +
           " leaves streams too few queues of the device: one that waits may hold up the copy that it waits for; "
           "leave" +
           " it unset, or at " + std::to_string(kLeastConnections) + " to 32";
  return "";
}

Result<std::pair<uint64_t, uint64_t>> Gpu::Memory() const {
  const CurrentContext current(*this);
  if (!current.status().ok()) return current.status();
  size_t free = 0, all = 0;
  const Status status = Check(api().MemGetInfo(&free, &all), "cuMemGetInfo");
  if (!status.ok()) return status;
  return std::pair<uint64_t, uint64_t>{free, all};
}

Status Gpu::Check(cuda::Outcome outcome, std::string_view what) const {
  if (outcome == cuda::kSuccess) return Status();
  return driver_->Check(outcome, "GPU " + std::to_string(info_.ordinal) + ": " + std::string(what));
}

void Gpu::IgnoreCaptures() const {
  int32_t mode = cuda::kCaptureRelaxed;
  (void)api().ThreadExchangeCaptureMode(&mode);
}

CurrentContext::CurrentContext(const Gpu& gpu)
    : gpu_(gpu),
      status_(gpu.Check(gpu.api().ContextPush(gpu.context()), "cuCtxPushCurrent")),
      capture_mode_(cuda::kCaptureRelaxed) {
  if (status_.ok()) (void)gpu_.api().ThreadExchangeCaptureMode(&capture_mode_);
}

CurrentContext::~CurrentContext() {
  if (!status_.ok()) return;
  (void)gpu_.api().ThreadExchangeCaptureMode(&capture_mode_);
  cuda::Context left = nullptr;
  (void)gpu_.api().ContextPop(&left);
}

}  // namespace byteps_like
