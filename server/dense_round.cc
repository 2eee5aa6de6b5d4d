#include "server/dense_round.h"

#include <algorithm>
#include <cstring>

#include "csrc/kernels/kernels.h"
#include "csrc/transport/link.h"

namespace byteps_like {
namespace {

constexpr uint32_t kBlock = 32u << 10;  // what is summed and copied out together: stays in the first-level cache

}  // namespace

void DenseRound::Begin(const Header& first, const Terms& terms, uint32_t world_size) {
  Round::Begin(first, terms, world_size);
  total_ = terms.total;
  work_ = terms.op == Op::kBroadcast ? DType::kUInt8 : terms.dtype;
  accumulated_ = 0;
  direct_ = nullptr;
}

size_t DenseRound::Widened(uint32_t bytes) const { return bytes / SizeOf(work_) * SizeOf(AccumulatorOf(work_)); }

Status DenseRound::Reserve(const Header& push) {
  if ((push.flags & (kByReference | kAbsent)) != 0) return {};
  const auto grow = [this](ShardBuffer& buffer, size_t bytes) {
    if (buffer.size() >= bytes) return true;
    buffer.Release();
    buffer = memory_.Take(bytes);
    return buffer.size() >= bytes;
  };
  if (grow(accumulator_, Widened(total_)) && (!widened() || grow(result_, total_))) return {};
  return memory_.Exhausted();
}

std::byte* DenseRound::Place(Link& link, const Header& push) {
  if (widened() || !IsSource(push.rank)) return nullptr;
  if (direct_ != nullptr || push.offset != accumulated_ || ranks_[push.rank].counted != accumulated_) return nullptr;
  direct_ = &link;
  return accumulator_.data() + accumulated_;
}

void DenseRound::Abandon(const Link& link) {
  if (direct_ == &link) direct_ = nullptr;
}

Link* DenseRound::InTheWay(const Link& link, const Header& push) const {
  const bool fills = push.offset + push.length > accumulated_;
  return fills && direct_ != &link ? direct_ : nullptr;
}

Status DenseRound::Land(const Link& link, const Header& push, const std::byte* payload) {
  Contribution& contribution = ranks_[push.rank];
  MarkBegun(contribution, total_);
  const auto begin = static_cast<uint32_t>(push.offset);
  const uint32_t end = begin + push.length;
  if (direct_ == &link) {
    direct_ = nullptr;
    accumulated_ = contribution.counted = end;
    return {};
  }
  if (end <= contribution.counted) return {};  // a repetition after a new link: it is in the sum already
  const uint32_t fresh = std::max(begin, contribution.counted);
  Count(fresh, payload + (fresh - begin), end - fresh);
  contribution.counted = end;
  return {};
}

void DenseRound::Count(uint32_t offset, const std::byte* payload, uint32_t length) {
  const size_t size = SizeOf(work_);
  const uint32_t added = offset < accumulated_ ? std::min(length, accumulated_ - offset) : 0;
  std::byte* const place = accumulator_.data();
  if (added > 0) kernels::Accumulate(terms().op, work_, place + Widened(offset), payload, added / size);
  if (added == length) return;
  kernels::Widen(work_, place + Widened(offset + added), payload + added, (length - added) / size);
  accumulated_ = offset + length;
}

uint32_t DenseRound::Ready() const {
  if (begun_ < ranks_.size()) return 0;
  uint32_t ready = total_;
  for (const Contribution& contribution : ranks_) ready = std::min(ready, contribution.counted);
  return ready;
}

Result<bool> DenseRound::Advance() {
  const uint32_t ready = Ready();
  if (ready <= complete_) return false;
  if (absent_ == ranks_.size()) return Status(Code::kMismatch, "no rank has brought anything: all are absent");
  if (references_ + absent_ == ranks_.size()) {
    FinishReferences(complete_, ready);
  } else {
    for (uint32_t from = complete_; from < ready; from += kBlock) Finish(from, std::min(from + kBlock, ready));
  }
  complete_ = ready;
  Touch();
  return true;
}

uint32_t DenseRound::Divisor() const {
  return terms().op == Op::kAverage ? static_cast<uint32_t>(ranks_.size()) - absent_ : 1;
}

// Everything lies in shared memory: one pass reads each contribution and writes each result, no accumulator.
void DenseRound::FinishReferences(uint32_t from, uint32_t to) {
  sources_.clear();
  destinations_.clear();
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].absent) continue;
    std::byte* const memory = ranks_[rank].reference + from;
    if (IsSource(rank)) sources_.push_back(memory);
    if (terms().op != Op::kBroadcast || rank != terms().root) destinations_.push_back(memory);
  }
  if (terms().op == Op::kBroadcast) {
    for (void* destination : destinations_) std::memcpy(destination, sources_[0], to - from);
    return;
  }
  kernels::ReduceMany(terms().op, work_, destinations_, sources_, (to - from) / SizeOf(work_), Divisor());
}

void DenseRound::Finish(uint32_t from, uint32_t to) {
  const size_t count = (to - from) / SizeOf(work_);
  std::byte* const sum = accumulator_.data() + Widened(from);
  std::byte* const out = const_cast<std::byte*>(result()) + from;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const Contribution& contribution = ranks_[rank];
    if (contribution.reference == nullptr || !IsSource(rank)) continue;
    if (accumulated_ > from) {
      kernels::Accumulate(terms().op, work_, sum, contribution.reference + from, count);
    } else {
      kernels::Widen(work_, sum, contribution.reference + from, count);
      accumulated_ = to;
    }
  }
  if (Divisor() != 1 || out != sum) kernels::Finalize(work_, out, sum, count, Divisor());
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].reference != nullptr && (terms().op != Op::kBroadcast || rank != terms().root))
      std::memcpy(ranks_[rank].reference + from, out, to - from);
}

}  // namespace byteps_like
