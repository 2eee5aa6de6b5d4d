// A Launcher on a stream of a device. The context has to be current (CurrentContext).
#pragma once

#include <vector>

#include "csrc/gpu/launcher.h"
#include "csrc/gpu/stream.h"

namespace byteps_like {

class StreamLauncher final : public Launcher {
 public:
  explicit StreamLauncher(const GpuStream& stream) : stream_(stream) {}
  Status Fill(DevicePointer to, uint8_t value, size_t bytes) override;
  Status Copy(DevicePointer to, DevicePointer from, size_t bytes) override;

 private:
  Status LaunchPacked(KernelHandle kernel, const LaunchShape& shape,
                      std::span<const KernelArgument> arguments) override;
  const GpuStream& stream_;
};

}  // namespace byteps_like
