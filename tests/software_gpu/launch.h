// The kernels of csrc/cuda as host functions, launched by name: for tests on machines without a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace software_gpu {

struct Kernel {
  std::string_view name;
  uint32_t threads;                          // of a block, as KERNEL says
  std::span<const uint32_t> argument_bytes;  // of each argument
  void (*run)(void* const* arguments);       // one thread
};

struct Shape {
  uint32_t blocks = 1;
  uint32_t threads = 1;
  uint32_t shared = 0;  // bytes of dynamic shared memory; they begin as rubbish
};

// All of them, in the order of their files.
std::span<const Kernel* const> Kernels();
// nullptr: there is none.
const Kernel* Find(std::string_view name);

// Runs it to its end on memory of the host; launches of several threads take turns. `arguments`: their addresses, as
// cuLaunchKernel takes them. Returns what went wrong, with kernel, block and threads named: a block that is not of the
// size its kernel says, threads of a warp or block that wait at different places or for threads that have ended, a mask
// that leaves lanes out. Empty: nothing.
std::string Launch(const Kernel& kernel, const Shape& shape, void* const* arguments);

}  // namespace software_gpu
