#include "server/rounds/encoded_round.h"

namespace byteps_like {

void EncodedRound::Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) {
  PayloadRound::Begin(first, terms, policy, seats);
  summed_ = 0;
}

Status EncodedRound::Grown(uint32_t rank) {
  if (!Has(rank)) return {};
  if (Status right = CheckHeader(rank, Come(rank)); !right.ok()) return right;
  if (summed_ + absent_ >= least_) {  // it is late
    Drop(rank);
    return {};
  }
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
  if (total_ != 0 || summed_ == 0 || summed_ + absent_ < least_) return false;
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
  if (update_ != nullptr)
    if (Status applied = update_->Apply(terms(), {sum_.data(), numel_ * sizeof(float)}); !applied.ok()) return applied;
  const uint32_t bytes = codec.Emit(numel_, summed_, draw, workspace.data(), sum_.data(), ResultBody());
  if (update_ != nullptr) update_->Encoded(terms(), draw, workspace.data(), {ResultBody(), bytes});
  total_ = complete_ = kPayloadHeader + bytes;
  sum_.Release();
  return {};
}

}  // namespace byteps_like
