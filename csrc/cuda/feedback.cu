// Error feedback and momentum correction (csrc/engine/coding/feedback.cc). Floor, bytes an element: compensate reads and
// writes x (8), reads the residual (4), reads and writes the momentum (8); settle reads and writes the residual (8)
// and, where it is there, the momentum (8), and reads x where it masks (4).
#include "device.cuh"

namespace {

constexpr u32 kEach = 4;

DEVICE float FiniteOr0(float value) { return MagnitudeOf(value) < 0x7F800000u ? value : 0.0f; }

}  // namespace

// `residual` and `momentum` may be nullptr.
KERNEL(256)
feedback_compensate(float* x, u32 numel, const float* residual, float scale, float* momentum, float mu, u32 nesterov) {
  for (u64 i = FirstIndex() * kEach; i < numel; i += IndexStride() * kEach) {
    auto values = Load<kEach>(x, i, numel);
    if (momentum != nullptr) {
      auto speed = Load<kEach>(momentum, i, numel);
#pragma unroll
      for (u32 j = 0; j < kEach; ++j) {
        speed.at[j] = mu * speed.at[j] + values.at[j];
        values.at[j] = nesterov != 0 ? values.at[j] + mu * speed.at[j] : speed.at[j];
      }
      Store(momentum, i, numel, speed);
    }
    if (residual != nullptr) {
      const auto left = Load<kEach>(residual, i, numel);
#pragma unroll
      for (u32 j = 0; j < kEach; ++j) values.at[j] += scale * left.at[j];
    }
    Store(x, i, numel, values);
  }
}

// `x`: of masked momentum only, else nullptr.
KERNEL(256) feedback_settle(const float* x, u32 numel, float* residual, float* momentum) {
  for (u64 i = FirstIndex() * kEach; i < numel; i += IndexStride() * kEach) {
    Values<float, kEach> left = {}, speed = {};
    if (residual != nullptr) left = Load<kEach>(residual, i, numel);
    if (momentum != nullptr) speed = Load<kEach>(momentum, i, numel);
    if (x != nullptr) {
      const auto values = Load<kEach>(x, i, numel);
#pragma unroll
      for (u32 j = 0; j < kEach; ++j) speed.at[j] = left.at[j] == values.at[j] ? speed.at[j] : 0.0f;
    }
#pragma unroll
    for (u32 j = 0; j < kEach; ++j) {
      left.at[j] = FiniteOr0(left.at[j]);
      speed.at[j] = FiniteOr0(speed.at[j]);
    }
    if (residual != nullptr) Store(residual, i, numel, left);
    if (momentum != nullptr) Store(momentum, i, numel, speed);
  }
}
