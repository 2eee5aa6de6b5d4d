// Keeps what a lossy codec leaves out for the next round: error feedback (Karimireddy et al., "Error Feedback Fixes
// SignSGD", ICML 2019) and momentum correction (Lin et al., "Deep Gradient Compression", ICLR 2018). Loops over the
// caller's fp32 arrays; limited by memory bandwidth.
#pragma once

#include <cstddef>

namespace byteps_like {

// Arrays as long as the tensor, kept alive by the caller; nullptr: none.
struct Feedback {
  float* residual = nullptr;
  float* momentum = nullptr;
  float mu = 0;
  bool nesterov = false;
  bool masked = false;  // momentum ends where the element was sent; needs both
  bool on_gpu = false;  // both in device memory: for tensors that the GPU encodes

  bool on_host() const { return (residual != nullptr || momentum != nullptr) && !on_gpu; }

  // The same of the partition that begins at element `first`.
  Feedback At(size_t first) const {
    Feedback part = *this;
    if (residual != nullptr) part.residual += first;
    if (momentum != nullptr) part.momentum += first;
    return part;
  }
};

// Before encoding: m = mu * m + g, g = nesterov ? g + mu * m : m, g = g + scale * e; in place of `x`.
void Compensate(const Feedback& feedback, float scale, float* x, size_t count);

// After it, the residual being x - sent already: masks the momentum. Residual and momentum become 0 where they aren't
// finite: the round's result shows that to a loss scaler, once.
void Settle(const Feedback& feedback, const float* x, size_t count);

}  // namespace byteps_like
