// The sum of several processes' arrays whose memory is mapped into this one (CUDA IPC): kernels::ReduceMany of sums,
// bit for bit, by csrc/cuda/peers.cu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"
#include "csrc/gpu/launcher.h"

namespace byteps_like {

class GpuPeerSum {
 public:
  static constexpr size_t kMostSources = 8;
  // kInvalid: a kernel is missing.
  static Result<GpuPeerSum> Make(const KernelTable& kernels);

  // kInvalid: there are no sums of such elements.
  static Status Check(DType dtype);

  // out[i] = (the sum of sources[s][i] in their order, in fp32) / divisor, rounded once. fp32, fp16, bf16 and 1 to
  // kMostSources sources (else kInvalid); arrays aligned to their elements; `out` may be one of the sources.
  Status Sum(Launcher& launcher, DType dtype, std::span<const DevicePointer> sources, DevicePointer out, uint64_t numel,
             uint32_t divisor) const;

 private:
  KernelHandle float32_ = 0, float16_ = 0, bfloat16_ = 0;
};

}  // namespace byteps_like
