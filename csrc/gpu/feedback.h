// Error feedback and momentum correction on a GPU: csrc/engine/coding/feedback.h, bit for bit, by
// csrc/cuda/feedback.cu.
#pragma once

#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/gpu/launcher.h"

namespace byteps_like {

// Arrays of floats on the device, aligned to 4; 0: none. As Feedback's.
struct GpuFeedback {
  DevicePointer residual = 0;
  DevicePointer momentum = 0;
  float mu = 0;
  bool nesterov = false;
  bool masked = false;

  // The same of the partition that begins at element `first`.
  GpuFeedback At(uint64_t first) const {
    GpuFeedback part = *this;
    if (residual != 0) part.residual += first * sizeof(float);
    if (momentum != 0) part.momentum += first * sizeof(float);
    return part;
  }
};

class GpuFeedbackKernels {
 public:
  // kInvalid: a kernel is missing.
  static Result<GpuFeedbackKernels> Make(const KernelTable& kernels);

  // Before encoding, in place of `x`; nothing is launched where there is nothing to do. `count` at least 1.
  Status Compensate(Launcher& launcher, const GpuFeedback& feedback, float scale, DevicePointer x,
                    uint32_t count) const;
  // After it, the residual being x - sent already.
  Status Settle(Launcher& launcher, const GpuFeedback& feedback, DevicePointer x, uint32_t count) const;

 private:
  GpuFeedbackKernels(KernelHandle compensate, KernelHandle settle) : compensate_(compensate), settle_(settle) {}

  KernelHandle compensate_, settle_;
};

}  // namespace byteps_like
