#include "csrc/gpu/stream_launcher.h"

#include <array>
#include <string>

namespace byteps_like {
namespace {

constexpr size_t kMostArguments = 32;
constexpr uint32_t kSharedUnasked = 48 * 1024;  // bytes that a launch gets without asking

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
  return LaunchOn(stream_.gpu(), stream_.handle(), kernel, shape, arguments);
}

Status LaunchOn(const Gpu& gpu, cuda::Stream stream, KernelHandle kernel, const LaunchShape& shape,
                std::span<const KernelArgument> arguments) {
  if (arguments.size() > kMostArguments) return Status(Code::kInvalid, "a kernel of more than 32 arguments");
  std::array<void*, kMostArguments> values{};
  for (size_t i = 0; i < arguments.size(); ++i) values[i] = const_cast<void*>(arguments[i].value);
  auto* const function = reinterpret_cast<cuda::Function>(kernel);
  if (shape.shared > kSharedUnasked) {
    Status status =
        gpu.Check(gpu.api().FunctionSetAttribute(function, cuda::kFunctionShared, static_cast<int32_t>(shape.shared)),
                  "cuFuncSetAttribute for " + std::to_string(shape.shared) + " bytes of shared memory");
    if (!status.ok()) return status;
  }
  return gpu.Check(gpu.api().LaunchKernel(function, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared, stream,
                                          values.data(), nullptr),
                   "cuLaunchKernel");
}

}  // namespace byteps_like
