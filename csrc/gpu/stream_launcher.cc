#include "csrc/gpu/stream_launcher.h"

#include <array>

namespace byteps_like {
namespace {

constexpr size_t kMostArguments = 32;

}  // namespace

Status StreamLauncher::Fill(DevicePointer to, uint8_t value, size_t bytes) {
  const Gpu& gpu = stream_.gpu();
  return gpu.Check(gpu.api().MemsetBytes(to, value, bytes, stream_.handle()), "cuMemsetD8Async");
}

Status StreamLauncher::Copy(DevicePointer to, DevicePointer from, size_t bytes) {
  const Gpu& gpu = stream_.gpu();
  return gpu.Check(gpu.api().Memcpy(to, from, bytes, stream_.handle()), "cuMemcpyAsync");
}

Status StreamLauncher::LaunchPacked(KernelHandle kernel, const LaunchShape& shape,
                                    std::span<const KernelArgument> arguments) {
  if (arguments.size() > kMostArguments) return Status(Code::kInvalid, "a kernel of more than 32 arguments");
  std::array<void*, kMostArguments> values{};
  for (size_t i = 0; i < arguments.size(); ++i) values[i] = const_cast<void*>(arguments[i].value);
  const Gpu& gpu = stream_.gpu();
  return gpu.Check(gpu.api().LaunchKernel(reinterpret_cast<cuda::Function>(kernel), shape.blocks, 1, 1, shape.threads,
                                          1, 1, shape.shared, stream_.handle(), values.data(), nullptr),
                   "cuLaunchKernel");
}

}  // namespace byteps_like
