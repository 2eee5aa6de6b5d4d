#include "server/rounds/payload_round.h"

#include <cstring>
#include <string>

namespace byteps_like {
namespace {

constexpr uint32_t kMaxElements = kMaxPartition / sizeof(float);

}  // namespace

Status PayloadRound::Nonsense(uint32_t rank, const std::string& why) {
  return Status(Code::kCorrupt, "rank " + std::to_string(rank) + " sent a payload that makes no sense: " + why);
}

void PayloadRound::Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) {
  Round::Begin(first, terms, policy, seats);
  codec_ = terms.codec;
  payloads_.resize(seats.ranks());
  numel_ = 0;
}

void PayloadRound::Release() {
  Round::Release();
  result_.Release();
}

Status PayloadRound::Reserve(const Header& push) {
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

Bytes PayloadRound::ZerosFrom(uint32_t rank, uint32_t offset) {
  std::byte* const payload = payloads_[rank].data();
  std::memset(payload + offset, 0, ranks_[rank].total - offset);
  return {payload, ranks_[rank].total};
}

void PayloadRound::CutShort(uint32_t rank) {
  Round::CutShort(rank);
  Drop(rank);
}

std::byte* PayloadRound::Place(Link&, const Header& push) {
  const Contribution& contribution = ranks_[push.rank];
  const bool next = push.offset == contribution.counted && contribution.counted < push.total;
  return next ? payloads_[push.rank].data() + push.offset : nullptr;
}

Status PayloadRound::Land(const Link&, const Header& push, const std::byte* payload) {
  Contribution& contribution = ranks_[push.rank];
  MarkBegun(contribution, push.total);
  const auto begin = static_cast<uint32_t>(push.offset);
  const uint32_t end = begin + push.length;
  if (end <= contribution.counted) return {};  // a repetition after a new link
  std::byte* const whole = payloads_[push.rank].data();
  const uint32_t fresh = contribution.counted - begin;  // the first of them that is new
  if (payload + fresh != whole + contribution.counted)
    std::memcpy(whole + contribution.counted, payload + fresh, push.length - fresh);
  contribution.counted = end;
  Touch();
  return Grown(push.rank);
}

Status PayloadRound::CheckHeader(uint32_t rank, Bytes payload) {
  auto header = DecodePayloadHeader(payload);
  if (!header.ok()) return Nonsense(rank, header.status().message());
  if (header->codec != codec_->codec->id() || header->spec != codec_->crc)
    return Nonsense(rank, "it was not made by " + codec_->codec->spec() + ", as it says");
  if (header->count != 1)
    return Nonsense(rank, "it is of " + std::to_string(header->count) + " contributions, not of one");
  if (header->numel > kMaxElements) return Nonsense(rank, std::to_string(header->numel) + " elements are too many");
  if (numel_ == 0)
    if (Status opened = Open(rank, header->numel); !opened.ok()) return opened;
  if (header->numel != numel_)
    return Status(Code::kMismatch, "the ranks disagree: rank " + std::to_string(rank) + " sent " +
                                       std::to_string(header->numel) + " elements encoded by " + codec_->text +
                                       ", but " + "rank " + std::to_string(opener_) + " sent " +
                                       std::to_string(numel_));
  if (ranks_[rank].total - kPayloadHeader <= plan_.payload) return {};
  return Nonsense(rank, std::to_string(ranks_[rank].total - kPayloadHeader) + " bytes are more than " +
                            codec_->codec->spec() + " makes of " + std::to_string(numel_) + " elements");
}

// The first header says how many elements there are.
Status PayloadRound::Open(uint32_t rank, uint32_t numel) {
  plan_ = codec_->codec->Plan(numel);
  if (plan_.result > kMaxPartition - kPayloadHeader)
    return Nonsense(rank, std::to_string(numel) + " elements are too many");
  sum_ = memory_.Take(plan_.accumulator);
  if (sum_.size() < plan_.accumulator) return memory_.Exhausted();
  numel_ = numel;
  opener_ = rank;
  codec_->codec->Reset(numel, sum_.data());
  return {};
}

Status PayloadRound::TakeResult(uint32_t bytes) {
  result_ = memory_.Take(bytes);
  return result_.size() == 0 ? memory_.Exhausted() : Status();
}

Status PayloadRound::OpenResult(uint32_t bytes, uint32_t count) {
  if (Status taken = TakeResult(kPayloadHeader + bytes); !taken.ok()) return taken;
  EncodePayloadHeader(
      {.codec = codec_->codec->id(), .count = static_cast<uint16_t>(count), .numel = numel_, .spec = codec_->crc},
      result_.data());
  return {};
}

}  // namespace byteps_like
