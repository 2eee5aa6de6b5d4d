#include "csrc/gpu/peers/peers.h"

#include <algorithm>
#include <string>

namespace byteps_like {
namespace {

constexpr uint32_t kThreads = 256, kEach = 8;

struct Sources {
  DevicePointer at[GpuPeerSum::kMostSources];
};

}  // namespace

Result<GpuPeerSum> GpuPeerSum::Make(const KernelTable& kernels) {
  KernelsOf kernel(kernels);
  GpuPeerSum made;
  made.float32_ = kernel("peers_sum_float32");
  made.float16_ = kernel("peers_sum_float16");
  made.bfloat16_ = kernel("peers_sum_bfloat16");
  if (!kernel.status().ok()) return kernel.status();
  return made;
}

Status GpuPeerSum::Check(DType dtype) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16) return {};
  return Status(Code::kInvalid, std::string("sums of GPU arrays of ") + NameOf(dtype));
}

Status GpuPeerSum::Sum(Launcher& launcher, DType dtype, std::span<const DevicePointer> sources, DevicePointer out,
                       uint64_t numel, uint32_t divisor) const {
  if (Status wrong = Check(dtype); !wrong.ok()) return wrong;
  const KernelHandle kernel = dtype == DType::kFloat32 ? float32_ : dtype == DType::kFloat16 ? float16_ : bfloat16_;
  if (sources.empty() || sources.size() > kMostSources)
    return Status(Code::kInvalid, "sums of " + std::to_string(sources.size()) + " GPU arrays: 1 to " +
                                      std::to_string(kMostSources) + " go at once");
  if (numel == 0) return {};
  Sources packed = {};
  std::ranges::copy(sources, packed.at);
  return launcher.Launch(kernel, ShapeFor(numel, kEach, kThreads), packed, static_cast<uint32_t>(sources.size()), numel,
                         static_cast<float>(divisor), out);
}

}  // namespace byteps_like
