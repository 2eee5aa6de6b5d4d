// How kernels are launched on a stream of a device: what a GPU codec knows of CUDA. csrc/gpu has one for the driver,
// tests/software_gpu one that runs the same kernels on the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "csrc/base/status.h"
#include "csrc/gpu/kernel_table.h"

namespace byteps_like {

using DevicePointer = uint64_t;  // an address on the device

struct LaunchShape {
  uint32_t blocks = 1;
  uint32_t threads = 1;  // of a block: the number in the kernel's KERNEL(...)
  uint32_t shared = 0;   // bytes of dynamic shared memory
};

// For `count` elements, of which a thread does `each` at a time; it strides on to the next where there are more than
// fill any device.
constexpr LaunchShape ShapeFor(uint64_t count, uint32_t each, uint32_t threads) {
  constexpr uint64_t kMostBlocks = 16384;
  const uint64_t of_block = uint64_t{each} * threads;
  const uint64_t blocks = std::clamp<uint64_t>((count + of_block - 1) / of_block, 1, kMostBlocks);
  return {.blocks = static_cast<uint32_t>(blocks), .threads = threads};
}

// One argument of a kernel: its value is copied by the launch.
struct KernelArgument {
  const void* value;
  uint32_t bytes;
};

// One stream of one device. Everything runs in the order of the calls, after they have returned; nothing blocks. A
// failure is kSystem and names the kernel and CUDA's error; one of what ran earlier may come from a later call.
class Launcher {
 public:
  Launcher() = default;
  virtual ~Launcher() = default;
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // The arguments' types are exactly the kernel's: DevicePointer for pointers, uint32_t for u32, float for float, a
  // trivial struct for one passed by value.
  template <typename... A>
  Status Launch(KernelHandle kernel, const LaunchShape& shape, const A&... arguments) {
    const KernelArgument packed[] = {{&arguments, sizeof(arguments)}...};
    return LaunchPacked(kernel, shape, packed);
  }

  // Bytes of shared memory that a block may have, its kernel's own included: CUDA gives 48 KiB, more if the device has
  // it and the launch asks for it.
  virtual uint32_t most_shared() const { return 48 * 1024; }

  // bytes of `value`, and a copy within the device.
  virtual Status Fill(DevicePointer to, uint8_t value, size_t bytes) = 0;
  virtual Status Copy(DevicePointer to, DevicePointer from, size_t bytes) = 0;

 private:
  virtual Status LaunchPacked(KernelHandle kernel, const LaunchShape& shape,
                              std::span<const KernelArgument> arguments) = 0;
};

}  // namespace byteps_like
