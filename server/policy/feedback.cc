#include "server/policy/feedback.h"

#include <cstring>

#include "csrc/kernels/kernels.h"
#include "server/rounds/round.h"

namespace byteps_like {
namespace {

// NaN and infinity would stay in the sum for ever. The loop runs in stretches of a fixed length, which -O2 vectorizes.
void KeepFinite(std::span<float> values) {
  constexpr size_t kStretch = 64;
  const auto finite_or_0 = [](float value) { return value - value == 0 ? value : 0.0f; };
  size_t i = 0;
  for (; i + kStretch <= values.size(); i += kStretch)
    for (size_t lane = 0; lane < kStretch; ++lane) values[i + lane] = finite_or_0(values[i + lane]);
  for (; i < values.size(); ++i) values[i] = finite_or_0(values[i]);
}

}  // namespace

Status ServerFeedback::Apply(const Terms& terms, std::span<std::byte> sum) {
  const auto numel = static_cast<uint32_t>(sum.size() / sizeof(float));
  if (codec_ != terms.codec || numel_ != numel) {
    buffer_.Release();
    buffer_ = memory_.Take(sum.size());
    if (buffer_.size() == 0) return memory_.Exhausted();
    codec_ = terms.codec;
    numel_ = numel;
  } else {
    kernels::Reduce(Op::kSum, DType::kFloat32, sum.data(), values(), numel);
  }
  std::memcpy(values(), sum.data(), sum.size());  // the codec may change the sum
  return {};
}

void ServerFeedback::Encoded(const Terms& terms, const Draw& draw, std::byte* workspace, Bytes result) {
  const std::span<float> total(values(), numel_);
  terms.codec->codec->Residual(total, draw, nullptr, workspace, result, total.data());
  KeepFinite(total);
}

}  // namespace byteps_like
