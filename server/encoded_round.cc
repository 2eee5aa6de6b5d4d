#include "server/encoded_round.h"

#include <cstring>
#include <string>

#include "csrc/codec/payload.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

constexpr uint32_t kMaxElements = kMaxPartition / sizeof(float);

// NaN and infinity would never leave a sum again. In stretches of a fixed length, of which -O2 makes vectors.
void KeepFinite(std::span<float> values) {
  constexpr size_t kStretch = 64;
  const auto finite_or_0 = [](float value) { return value - value == 0 ? value : 0.0f; };
  size_t i = 0;
  for (; i + kStretch <= values.size(); i += kStretch)
    for (size_t lane = 0; lane < kStretch; ++lane) values[i + lane] = finite_or_0(values[i + lane]);
  for (; i < values.size(); ++i) values[i] = finite_or_0(values[i]);
}

Status Nonsense(uint32_t rank, const std::string& why) {
  return Status(Code::kCorrupt, "rank " + std::to_string(rank) + " sent a payload that makes no sense: " + why);
}

}  // namespace

void EncodedRound::Begin(const Header& first, const Terms& terms, uint32_t world_size) {
  Round::Begin(first, terms, world_size);
  codec_ = terms.codec;
  payloads_.resize(world_size);
  numel_ = summed_ = 0;
}

void EncodedRound::Release() {
  Round::Release();
  result_.Release();
}

Status EncodedRound::Reserve(const Header& push) {
  const Contribution& contribution = ranks_[push.rank];
  if (contribution.begun && contribution.total != push.total)
    return Nonsense(push.rank,
                    "it has " + std::to_string(push.total) + " bytes, and had " + std::to_string(contribution.total));
  ShardBuffer& payload = payloads_[push.rank];
  if (contribution.counted == push.total || payload.size() >= push.total) return {};
  payload.Release();
  payload = memory_.Take(push.total);
  return payload.size() == 0 ? memory_.Exhausted() : Status();
}

std::byte* EncodedRound::Place(Link&, const Header& push) {
  const Contribution& contribution = ranks_[push.rank];
  const bool next = push.offset == contribution.counted && contribution.counted < push.total;
  return next ? payloads_[push.rank].data() + push.offset : nullptr;
}

Status EncodedRound::Land(const Link&, const Header& push, const std::byte* payload) {
  Contribution& contribution = ranks_[push.rank];
  MarkBegun(contribution, push.total);
  const auto begin = static_cast<uint32_t>(push.offset);
  const uint32_t end = begin + push.length;
  if (end <= contribution.counted) return {};  // a repetition after a new link
  ShardBuffer& whole = payloads_[push.rank];
  const uint32_t fresh = contribution.counted - begin;  // the first of them that is new
  if (payload + fresh != whole.data() + contribution.counted)
    std::memcpy(whole.data() + contribution.counted, payload + fresh, push.length - fresh);
  contribution.counted = end;
  Touch();
  if (end < contribution.total) return {};
  Status added = Add(push.rank, {whole.data(), contribution.total});
  whole.Release();
  return added;
}

Status EncodedRound::Add(uint32_t rank, Bytes payload) {
  auto header = DecodePayloadHeader(payload);
  if (!header.ok()) return Nonsense(rank, header.status().message());
  if (Status right = CheckHeader(rank, *header); !right.ok()) return right;
  if (numel_ == 0)
    if (Status opened = Open(rank, header->numel); !opened.ok()) return opened;
  const Bytes body = payload.subspan(kPayloadHeader);
  if (body.size() > plan_.payload)
    return Nonsense(rank, std::to_string(body.size()) + " bytes are more than " + codec_->codec->spec() + " makes of " +
                              std::to_string(numel_) + " elements");
  const ShardBuffer workspace = memory_.Take(plan_.workspace);
  if (workspace.size() < plan_.workspace) return memory_.Exhausted();
  const Status added = codec_->codec->Accumulate(numel_, body, workspace.data(), sum_.data());
  if (!added.ok()) return Nonsense(rank, added.message());
  ++summed_;
  return {};
}

Status EncodedRound::CheckHeader(uint32_t rank, const PayloadHeader& header) const {
  if (header.codec != codec_->codec->id() || header.spec != codec_->crc)
    return Nonsense(rank, "it was not made by " + codec_->codec->spec() + ", as it says");
  if (header.count != 1)
    return Nonsense(rank, "it is of " + std::to_string(header.count) + " contributions, not of one");
  if (header.numel > kMaxElements) return Nonsense(rank, std::to_string(header.numel) + " elements are too many");
  if (numel_ == 0 || header.numel == numel_) return {};
  std::vector<uint32_t> others;
  for (uint32_t other = 0; other < ranks_.size(); ++other)
    if (other != rank && Has(other)) others.push_back(other);
  return Status(Code::kMismatch, "the ranks disagree: rank " + std::to_string(rank) + " sent " +
                                     std::to_string(header.numel) + " elements encoded by " + codec_->text + ", but " +
                                     JoinRanks(others) + " sent " + std::to_string(numel_));
}

// The first payload says how many elements there are.
Status EncodedRound::Open(uint32_t rank, uint32_t numel) {
  plan_ = codec_->codec->Plan(numel);
  if (plan_.result > kMaxPartition - kPayloadHeader)
    return Nonsense(rank, std::to_string(numel) + " elements are too many");
  sum_ = memory_.Take(plan_.accumulator);
  if (sum_.size() < plan_.accumulator) return memory_.Exhausted();
  numel_ = numel;
  codec_->codec->Reset(numel, sum_.data());
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
  result_ = memory_.Take(kPayloadHeader + plan_.result);
  if (workspace.size() < plan_.workspace || result_.size() == 0) return memory_.Exhausted();
  if (codec_->two_way) {
    Status begun = feedback_.Begin(memory_, *codec_, {reinterpret_cast<float*>(sum_.data()), numel_});
    if (!begun.ok()) return begun;
  }
  std::byte* const body = result_.data() + kPayloadHeader;
  const uint32_t bytes = codec.Emit(numel_, summed_, draw, workspace.data(), sum_.data(), body);
  if (codec_->two_way) feedback_.End(*codec_, draw, workspace.data(), {body, bytes});
  EncodePayloadHeader(
      {.codec = codec.id(), .count = static_cast<uint16_t>(summed_), .numel = numel_, .spec = codec_->crc},
      result_.data());
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
