// CUDA's driver, reached by dlopen: there at run time or not, never needed to build.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "csrc/base/status.h"
#include "csrc/gpu/cuda_abi.h"

namespace byteps_like {

inline constexpr const char* kCudaLibrary = "libcuda.so.1";
inline constexpr int kLeastCudaVersion = 11070;  // 11.7: streams wait for values without a setting of the kernel module

// Thread-safe. Stays loaded until the process ends: the driver has threads of its own.
class Driver {
 public:
  // The same object for the same path. kDevice, with what to do: no such library, one of its functions missing, too old
  // a version, or cuInit has failed (no device, say).
  static Result<std::shared_ptr<const Driver>> Open(const std::string& path = kCudaLibrary);

  const cuda::Functions& api() const { return api_; }
  int version() const { return version_; }  // as CUDA counts: 12040 is 12.4
  const std::string& path() const { return path_; }

  // kOk for kSuccess; else kDevice: "<what>: CUDA_ERROR_OUT_OF_MEMORY (out of memory)", and what that means here.
  // kCapacity for lack of memory.
  Status Check(cuda::Outcome outcome, std::string_view what) const;
  std::string NameOf(cuda::Outcome outcome) const;  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"

 private:
  explicit Driver(std::string path) : path_(std::move(path)) {}
  Status Load();
  Status Begin();

  const std::string path_;
  cuda::Functions api_;
  int version_ = 0;
};

// Whether no later call to the context can succeed: a kernel has crashed, or the device is lost.
bool IsSticky(cuda::Outcome outcome);

}  // namespace byteps_like
