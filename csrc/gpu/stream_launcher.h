// A Launcher on a stream of a device. The context has to be current (CurrentContext).
#pragma once

#include <span>

#include "csrc/gpu/launcher.h"
#include "csrc/gpu/stream.h"

namespace byteps_like {

// One kernel on any stream of the device, the framework's too. kInvalid: more than 32 arguments.
Status LaunchOn(const Gpu& gpu, cuda::Stream stream, KernelHandle kernel, const LaunchShape& shape,
                std::span<const KernelArgument> arguments);

class StreamLauncher final : public Launcher {
 public:
  explicit StreamLauncher(const GpuStream& stream) : stream_(stream) {}
  uint32_t most_shared() const override { return stream_.gpu().most_shared(); }
  Status Fill(DevicePointer to, uint8_t value, size_t bytes) override;
  Status Copy(DevicePointer to, DevicePointer from, size_t bytes) override;

 private:
  Status LaunchPacked(KernelHandle kernel, const LaunchShape& shape,
                      std::span<const KernelArgument> arguments) override;
  const GpuStream& stream_;
};

}  // namespace byteps_like
