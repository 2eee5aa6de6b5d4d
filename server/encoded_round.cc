#include "server/encoded_round.h"

#include <cstring>

#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

// NaN and infinity would never leave a sum again. In stretches of a fixed length, of which -O2 makes vectors.
void KeepFinite(std::span<float> values) {
  constexpr size_t kStretch = 64;
  const auto finite_or_0 = [](float value) { return value - value == 0 ? value : 0.0f; };
  size_t i = 0;
  for (; i + kStretch <= values.size(); i += kStretch)
    for (size_t lane = 0; lane < kStretch; ++lane) values[i + lane] = finite_or_0(values[i + lane]);
  for (; i < values.size(); ++i) values[i] = finite_or_0(values[i]);
}

}  // namespace

void EncodedRound::Begin(const Header& first, const Terms& terms, uint32_t world_size) {
  PayloadRound::Begin(first, terms, world_size);
  summed_ = 0;
}

Status EncodedRound::Grown(uint32_t rank) {
  if (!Has(rank)) return {};
  if (Status right = CheckHeader(rank, Come(rank)); !right.ok()) return right;
  const ShardBuffer workspace = memory_.Take(plan_.workspace);
  if (workspace.size() < plan_.workspace) return memory_.Exhausted();
  const Bytes body = Come(rank).subspan(kPayloadHeader);
  const Status added = codec_->codec->Accumulate(numel_, body, workspace.data(), sum_.data());
  if (!added.ok()) return Nonsense(rank, added.message());
  ++summed_;
  Drop(rank);
  return {};
}

Result<bool> EncodedRound::Advance() {
  if (total_ != 0 || summed_ < ranks_.size()) return false;
  const Status emitted = Emit();
  if (!emitted.ok()) return emitted;
  Touch();
  return true;
}

Status EncodedRound::Emit() {
  const Codec& codec = *codec_->codec;
  const Draw draw{key_, number(), kServerRank};
  const ShardBuffer workspace = memory_.Take(plan_.workspace);
  if (workspace.size() < plan_.workspace) return memory_.Exhausted();
  if (Status opened = OpenResult(plan_.result, summed_); !opened.ok()) return opened;
  if (codec_->two_way) {
    Status begun = feedback_.Begin(memory_, *codec_, {reinterpret_cast<float*>(sum_.data()), numel_});
    if (!begun.ok()) return begun;
  }
  const uint32_t bytes = codec.Emit(numel_, summed_, draw, workspace.data(), sum_.data(), ResultBody());
  if (codec_->two_way) feedback_.End(*codec_, draw, workspace.data(), {ResultBody(), bytes});
  total_ = complete_ = kPayloadHeader + bytes;
  sum_.Release();
  return {};
}

Status ServerFeedback::Begin(ShardMemory& memory, const ServerCodec& codec, std::span<float> sum) {
  const auto numel = static_cast<uint32_t>(sum.size());
  if (codec_ != &codec || numel_ != numel) {
    buffer_.Release();
    buffer_ = memory.Take(sum.size_bytes());
    if (buffer_.size() == 0) return memory.Exhausted();
    codec_ = &codec;
    numel_ = numel;
  } else {
    kernels::Reduce(Op::kSum, DType::kFloat32, sum.data(), values(), numel);
  }
  std::memcpy(values(), sum.data(), sum.size_bytes());  // Emit may change the sum
  return {};
}

void ServerFeedback::End(const ServerCodec& codec, const Draw& draw, std::byte* workspace, Bytes result) {
  const std::span<float> total(values(), numel_);
  codec.codec->Residual(total, draw, nullptr, workspace, result, total.data());
  KeepFinite(total);
}

}  // namespace byteps_like
