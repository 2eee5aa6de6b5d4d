#include "csrc/gpu/feedback.h"

namespace byteps_like {

namespace {

constexpr uint32_t kThreads = 256, kEach = 4;

bool IsNone(const GpuFeedback& feedback) { return feedback.residual == 0 && feedback.momentum == 0; }

}  // namespace

Result<GpuFeedbackKernels> GpuFeedbackKernels::Make(const KernelTable& kernels) {
  KernelsOf kernel(kernels);
  const GpuFeedbackKernels made(kernel("feedback_compensate"), kernel("feedback_settle"));
  if (!kernel.status().ok()) return kernel.status();
  return made;
}

Status GpuFeedbackKernels::Compensate(Launcher& launcher, const GpuFeedback& feedback, float scale, DevicePointer x,
                                      uint32_t count) const {
  if (IsNone(feedback)) return {};
  return launcher.Launch(compensate_, ShapeFor(count, kEach, kThreads), x, count, feedback.residual, scale,
                         feedback.momentum, feedback.mu, uint32_t{feedback.nesterov});
}

Status GpuFeedbackKernels::Settle(Launcher& launcher, const GpuFeedback& feedback, DevicePointer x,
                                  uint32_t count) const {
  if (IsNone(feedback)) return {};
  const DevicePointer masking = feedback.masked ? x : 0;
  return launcher.Launch(settle_, ShapeFor(count, kEach, kThreads), masking, count, feedback.residual,
                         feedback.momentum);
}

}  // namespace byteps_like
