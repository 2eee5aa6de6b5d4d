#include "csrc/engine/coding/feedback.h"

#include <cmath>

namespace byteps_like {
namespace {

// Without a branch, so that it becomes vectors: NaN compares as false.
float FiniteOr0(float value) { return std::fabs(value) <= 0x1.fffffep127f ? value : 0.0f; }

void CorrectMomentum(float* __restrict momentum, float mu, bool nesterov, float* __restrict x, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    momentum[i] = mu * momentum[i] + x[i];
    x[i] = nesterov ? x[i] + mu * momentum[i] : momentum[i];
  }
}

void Mask(const float* __restrict residual, const float* __restrict x, float* __restrict momentum, size_t count) {
  for (size_t i = 0; i < count; ++i) momentum[i] = residual[i] == x[i] ? momentum[i] : 0.0f;
}

void KeepFinite(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = FiniteOr0(values[i]);
}

}  // namespace

void Compensate(const Feedback& feedback, float scale, float* x, size_t count) {
  if (feedback.momentum != nullptr) CorrectMomentum(feedback.momentum, feedback.mu, feedback.nesterov, x, count);
  if (const float* const residual = feedback.residual)
    for (size_t i = 0; i < count; ++i) x[i] += scale * residual[i];
}

void Settle(const Feedback& feedback, const float* x, size_t count) {
  if (feedback.masked) Mask(feedback.residual, x, feedback.momentum, count);
  if (feedback.residual != nullptr) KeepFinite(feedback.residual, count);
  if (feedback.momentum != nullptr) KeepFinite(feedback.momentum, count);
}

}  // namespace byteps_like
