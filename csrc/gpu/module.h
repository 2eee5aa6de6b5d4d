// Kernels that were compiled for a device, loaded into its context.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "csrc/gpu/gpu.h"
#include "csrc/gpu/kernel_table.h"

namespace byteps_like {

// Unloading waits for nothing: what was launched from it must have ended.
class GpuModule {
 public:
  // A file of cubin, fatbin or PTX.
  static Result<std::unique_ptr<GpuModule>> Load(std::shared_ptr<Gpu> gpu, const std::string& path);
  ~GpuModule();
  GpuModule(const GpuModule&) = delete;

  Result<KernelHandle> Function(const std::string& name) const;

 private:
  GpuModule(std::shared_ptr<Gpu> gpu, cuda::Module handle) : gpu_(std::move(gpu)), handle_(handle) {}
  const std::shared_ptr<Gpu> gpu_;
  const cuda::Module handle_;
};

}  // namespace byteps_like
