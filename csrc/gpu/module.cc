#include "csrc/gpu/module.h"

namespace byteps_like {

Result<std::unique_ptr<GpuModule>> GpuModule::Load(std::shared_ptr<Gpu> gpu, const std::string& path) {
  const CurrentContext current(*gpu);
  if (!current.status().ok()) return current.status();
  cuda::Module handle = nullptr;
  const Status status = gpu->Check(gpu->api().ModuleLoad(&handle, path.c_str()), "cuModuleLoad of " + path);
  if (!status.ok()) return status;
  return std::unique_ptr<GpuModule>(new GpuModule(std::move(gpu), handle));
}

GpuModule::~GpuModule() {
  const CurrentContext current(*gpu_);
  (void)gpu_->api().ModuleUnload(handle_);
}

Result<KernelHandle> GpuModule::Function(const std::string& name) const {
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  cuda::Function function = nullptr;
  const Status status =
      gpu_->Check(gpu_->api().ModuleGetFunction(&function, handle_, name.c_str()), "cuModuleGetFunction of " + name);
  if (!status.ok()) return status;
  return reinterpret_cast<KernelHandle>(function);
}

}  // namespace byteps_like
