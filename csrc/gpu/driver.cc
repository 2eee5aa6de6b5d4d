#include "csrc/gpu/driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

namespace byteps_like {
namespace {

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string_view AdviceFor(cuda::Outcome outcome) {
  switch (outcome) {
    case cuda::kOutOfMemory:
      return "; smaller partitions or batches, or fewer processes on this device, leave more of it";
    case cuda::kNotInitialized:
      return "; a forked child can't use the driver that its parent has opened: start processes by spawn";
    case cuda::kNoDevice:
      return "; is one visible (CUDA_VISIBLE_DEVICES, nvidia-smi)?";
    case cuda::kAlreadyRegistered:
      return "; this memory is page-locked already";
    default:
      return IsSticky(outcome) ? "; the process can't use the device any more: look into the kernel log (dmesg) and "
                                 "begin anew from a checkpoint"
                               : "";
  }
}

template <typename Pointer>
bool Find(void* library, const char* symbol, Pointer& function) {
  function = reinterpret_cast<Pointer>(::dlsym(library, symbol));
  return function != nullptr;
}

}  // namespace

bool IsSticky(cuda::Outcome outcome) {
  switch (outcome) {
    case 4:    // CUDA_ERROR_DEINITIALIZED: the process ends
    case 46:   // CUDA_ERROR_DEVICE_UNAVAILABLE
    case 214:  // CUDA_ERROR_ECC_UNCORRECTABLE
    case 220:  // CUDA_ERROR_NVLINK_UNCORRECTABLE
    case 226:  // CUDA_ERROR_CONTAINED
    case 700:  // CUDA_ERROR_ILLEGAL_ADDRESS
    case 702:  // CUDA_ERROR_LAUNCH_TIMEOUT
    case 709:  // CUDA_ERROR_CONTEXT_IS_DESTROYED
    case 710:  // CUDA_ERROR_ASSERT
    case 999:  // CUDA_ERROR_UNKNOWN
      return true;
    default:  // 714-719: CUDA_ERROR_HARDWARE_STACK_ERROR to CUDA_ERROR_LAUNCH_FAILED
      return outcome >= 714 && outcome <= cuda::kLaunchFailed;
  }
}

Result<std::shared_ptr<const Driver>> Driver::Open(const std::string& path) {
  static std::mutex mutex;
  static auto* const drivers = new std::map<std::string, std::shared_ptr<const Driver>>();
  std::lock_guard lock(mutex);
  std::shared_ptr<const Driver>& known = (*drivers)[path];
  if (known) return known;
  std::shared_ptr<Driver> driver(new Driver(path));
  Status status = driver->Load();
  if (status.ok()) status = driver->Begin();
  if (!status.ok()) return status;
  known = std::move(driver);
  return known;
}

Status Driver::Load() {
  void* const library = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Status(Code::kDevice, std::string("no CUDA driver: ") + ::dlerror() +
                                     "; install NVIDIA's, and give containers access to it (--gpus all)");
#define BYTEPS_LIKE_CUDA_FIND(name, symbol, ...) \
  if (!Find(library, symbol, api_.name))         \
    return Status(Code::kDevice, path_ + " has no " symbol ": it is older than CUDA " + VersionText(kLeastCudaVersion));
  BYTEPS_LIKE_CUDA_FUNCTIONS(BYTEPS_LIKE_CUDA_FIND)
#undef BYTEPS_LIKE_CUDA_FIND
#define BYTEPS_LIKE_CUDA_FIND(name, symbol, ...) (void)Find(library, symbol, api_.name);
  BYTEPS_LIKE_CUDA_OPTIONAL(BYTEPS_LIKE_CUDA_FIND)
#undef BYTEPS_LIKE_CUDA_FIND
  return Status();
}

Status Driver::Begin() {
  Status status = Check(api_.Init(0), "cuInit");
  if (!status.ok()) return status;
  status = Check(api_.DriverGetVersion(&version_), "cuDriverGetVersion");
  if (!status.ok() || version_ >= kLeastCudaVersion) return status;
  return Status(Code::kDevice, path_ + " speaks CUDA " + VersionText(version_) + ", and this needs " +
                                   VersionText(kLeastCudaVersion) + " at least: update NVIDIA's driver");
}

std::string Driver::NameOf(cuda::Outcome outcome) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api_.GetErrorName(outcome, &name) != cuda::kSuccess || name == nullptr)
    return "CUDA error " + std::to_string(outcome);
  const bool told = api_.GetErrorString(outcome, &text) == cuda::kSuccess && text != nullptr;
  return std::string(name) + (told ? " (" + std::string(text) + ")" : "");
}

Status Driver::Check(cuda::Outcome outcome, std::string_view what) const {
  if (outcome == cuda::kSuccess) return Status();
  const Code code = outcome == cuda::kOutOfMemory ? Code::kCapacity : Code::kDevice;
  return Status(code, std::string(what) + ": " + NameOf(outcome) + std::string(AdviceFor(outcome)));
}

}  // namespace byteps_like
