// A stream of the software GPU, whose memory is the host's: whatever is launched is done when the call returns.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/gpu/launcher.h"
#include "tests/software_gpu/launch.h"

namespace software_gpu {

inline byteps_like::DevicePointer Address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

// All kernels there are.
inline byteps_like::KernelTable Handles() {
  byteps_like::KernelTable table;
  for (const Kernel* const kernel : Kernels()) table.emplace(kernel->name, Address(kernel));
  return table;
}

struct Device {
  uint32_t most_shared = 227 * 1024;  // bytes of a block: those of an H100
  uint32_t most_blocks = UINT32_MAX;  // of a launch: what is more is left to the strides of the kernels
};

class SoftwareLauncher : public byteps_like::Launcher {
 public:
  explicit SoftwareLauncher(const Device& device = {}) : device_(device) {}
  uint32_t most_shared() const override { return device_.most_shared; }
  byteps_like::Status Fill(byteps_like::DevicePointer to, uint8_t value, size_t bytes) override {
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return {};
  }
  byteps_like::Status Copy(byteps_like::DevicePointer to, byteps_like::DevicePointer from, size_t bytes) override {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return {};
  }

 private:
  // Beside what Launch checks: the number and the sizes of the arguments, which a driver takes on trust.
  byteps_like::Status LaunchPacked(byteps_like::KernelHandle handle, const byteps_like::LaunchShape& shape,
                                   std::span<const byteps_like::KernelArgument> arguments) override {
    const auto& kernel = *reinterpret_cast<const Kernel*>(handle);
    const auto failed = [](const std::string& why) { return byteps_like::Status(byteps_like::Code::kSystem, why); };
    const std::string name(kernel.name);
    if (arguments.size() != kernel.argument_bytes.size())
      return failed(name + " takes " + std::to_string(kernel.argument_bytes.size()) + " arguments, not " +
                    std::to_string(arguments.size()));
    std::vector<void*> addresses;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].bytes != kernel.argument_bytes[i])
        return failed(name + ": argument " + std::to_string(i) + " is of the wrong size");
      addresses.push_back(const_cast<void*>(arguments[i].value));
    }
    const std::string failure = software_gpu::Launch(
        kernel,
        {.blocks = std::min(shape.blocks, device_.most_blocks), .threads = shape.threads, .shared = shape.shared},
        addresses.data());
    return failure.empty() ? byteps_like::Status() : failed(failure);
  }

  const Device device_;
};

}  // namespace software_gpu
