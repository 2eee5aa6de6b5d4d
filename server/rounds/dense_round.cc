#include "server/rounds/dense_round.h"

#include <algorithm>
#include <cstring>

#include "csrc/kernels/kernels.h"
#include "csrc/transport/links/link.h"

namespace byteps_like {
namespace {

constexpr uint32_t kLeastLent = 64u << 10;  // a sum that is worth the messages about it
constexpr uint32_t kBlock = 32u << 10;      // bytes summed and copied out together: they stay in the first-level cache

}  // namespace

void DenseRound::Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) {
  Round::Begin(first, terms, policy, seats);
  total_ = terms.total;
  work_ = terms.op == Op::kBroadcast ? DType::kUInt8 : terms.dtype;
  filled_ = waiting_ = {};
  cuts_.clear();
  first_ = kNobody;
  direct_ = nullptr;
  tenant_ = !widened() && lent_.size() >= total_ ? lent_to_ : kNobody;
}

size_t DenseRound::Widened(uint32_t bytes) const { return bytes / SizeOf(work_) * SizeOf(AccumulatorOf(work_)); }

Status DenseRound::Reserve(const Header& push) {
  if ((push.flags & kAbsent) != 0 || ((push.flags & kByReference) != 0 && update_ == nullptr && !relayed_)) return {};
  const auto grow = [this](ShardBuffer& buffer, size_t bytes) {
    if (buffer.size() >= bytes) return true;
    buffer.Release();
    buffer = memory_.Take(bytes);
    return buffer.size() >= bytes;
  };
  const bool aside = push.rank != tenant_ && push.offset + push.length > filled_.end;
  const bool enough = tenant_ == kNobody ? grow(accumulator_, Widened(total_)) && (!widened() || grow(result_, total_))
                                         : !aside || grow(aside_, total_);
  return enough ? Status() : memory_.Exhausted();
}

std::byte* DenseRound::Place(Link& link, const Header& push) {
  if (widened() || !Brings(push.rank) || (tenant_ != kNobody && push.rank != tenant_)) return nullptr;
  if (direct_ != nullptr || push.offset != filled_.end || ranks_[push.rank].counted != filled_.end) return nullptr;
  direct_ = &link;
  return sum() + filled_.end;
}

void DenseRound::Abandon(const Link& link) {
  if (direct_ == &link) direct_ = nullptr;
}

Link* DenseRound::InTheWay(const Link& link, const Header& push) const {
  const bool fills = tenant_ == kNobody && push.offset + push.length > filled_.end;
  return fills && direct_ != &link ? direct_ : nullptr;
}

Status DenseRound::Land(const Link& link, const Header& push, const std::byte* payload) {
  Contribution& contribution = ranks_[push.rank];
  MarkBegun(contribution, total_);
  if (first_ == kNobody) first_ = push.rank;
  const auto begin = static_cast<uint32_t>(push.offset);
  const uint32_t end = begin + push.length;
  if (direct_ == &link) {
    direct_ = nullptr;
    filled_.end = contribution.counted = end;
    Touch();
    AddAside(end);
    return {};
  }
  if (tenant_ == push.rank && payload == sum() + begin)
    return Status(Code::kCorrupt, "rank " + std::to_string(push.rank) + " wrote over what has been counted");
  if (end <= contribution.counted) return {};  // a repetition after a new link: it is in the sum already
  const uint32_t fresh = std::max(begin, contribution.counted);
  Count(push.rank, fresh, payload + (fresh - begin), end - fresh);
  contribution.counted = end;
  Touch();
  return {};
}

void DenseRound::Count(uint32_t rank, uint32_t offset, const std::byte* payload, uint32_t length) {
  if (tenant_ == kNobody || rank == tenant_) {
    Add(sum(), filled_, offset, payload, length);
    return AddAside(filled_.end);
  }
  const uint32_t in_sum = offset < filled_.end ? std::min(length, filled_.end - offset) : 0;
  Add(sum(), filled_, offset, payload, in_sum);
  if (in_sum == length) return;
  if (waiting_.begin == waiting_.end) waiting_ = {filled_.end, filled_.end};
  Add(aside_.data(), waiting_, offset + in_sum, payload + in_sum, length - in_sum);
}

// Adds the bytes that lie in the filled part, and stores those beyond it as the first there.
void DenseRound::Add(std::byte* to, Extent& filled, uint32_t offset, const std::byte* payload, uint32_t length) {
  const size_t size = SizeOf(work_);
  const uint32_t added = offset < filled.end ? std::min(length, filled.end - offset) : 0;
  if (added > 0) kernels::Accumulate(terms().op, work_, to + Widened(offset), payload, added / size);
  if (added == length) return;
  kernels::Widen(work_, to + Widened(offset + added), payload + added, (length - added) / size);
  filled.end = offset + length;
}

// Adds bytes that have waited for the sum to be filled up to them.
void DenseRound::AddAside(uint32_t to) {
  const uint32_t end = std::min(to, waiting_.end);
  if (end <= waiting_.begin) return;
  Add(sum(), filled_, waiting_.begin, aside_.data() + waiting_.begin, end - waiting_.begin);
  waiting_.begin = end;
}

// What has been counted may have gone out as part of the result.
void DenseRound::CutShort(uint32_t rank) { cuts_.push_back(ranks_[rank].counted); }

uint32_t DenseRound::Ready() const {
  if (begun_ < least_) return 0;
  uint32_t ready = total_;
  for (const Contribution& contribution : ranks_)
    if (contribution.begun && !contribution.gone) ready = std::min(ready, contribution.counted);
  return ready;
}

// All who live are absent. Whose bytes they were absent for may have died.
Status DenseRound::NobodyContributes() const {
  std::vector<uint32_t> gone;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].gone) gone.push_back(rank);
  if (gone.empty()) return Status(Code::kMismatch, "no rank contributes: all are absent");
  return Status(Code::kPeerLost,
                "no rank contributes: " + seats_->Names(gone) + " are no longer in the job, and the others are absent");
}

Result<bool> DenseRound::Advance() {
  const uint32_t ready = Ready();
  if (ready <= summed_) return false;
  if (!relayed_ && absent_ + cuts_.size() >= seats_->counting()) return NobodyContributes();
  if (update_ != nullptr) {
    if (ready < total_) return false;
    if (Status finished = FinishWhole(); !finished.ok()) return finished;
  } else if (has_present()) {
    Sum(summed_, ready);
  }
  summed_ = ready;
  if (!relayed_) Complete(ready);
  Touch();
  return true;
}

void DenseRound::Sum(uint32_t from, uint32_t to) {
  if (!relayed_ && at_once_ == contributions_) return FinishReferences(from, to);
  for (uint32_t begin = from, end = 0; begin < to; begin = end) {
    end = BlockEnd(begin, to);
    Finish(begin, end);
    if (!relayed_) ReturnReferences(begin, end);
  }
}

uint32_t DenseRound::BlockEnd(uint32_t from, uint32_t to) const {
  uint32_t end = std::min(from + kBlock, to);
  for (const uint32_t cut : cuts_)
    if (cut > from) end = std::min(end, cut);
  return end;
}

void DenseRound::Complete(uint32_t until) {
  complete_ = until;
  if (!finished()) return;
  aside_.Release();
  LetGoOfReferences();
}

void DenseRound::Answer(uint32_t until, bool movable) {
  Round::Answer(until, movable);
  if (until <= complete_) return;
  ReturnReferences(complete_, until);
  Complete(until);
  Touch();
}

// An update sees the whole sum before anyone reads it.
Status DenseRound::FinishWhole() {
  for (uint32_t from = 0, end = 0; from < total_; from = end) Finish(from, end = BlockEnd(from, total_));
  Status applied = update_->Apply(terms(), {const_cast<std::byte*>(result()), total_});
  if (applied.ok()) ReturnReferences(0, total_);
  return applied;
}

uint32_t DenseRound::Divisor(uint32_t from) const {
  if (terms().op != Op::kAverage || relayed_) return 1;
  const auto cut = std::ranges::count_if(cuts_, [from](uint32_t end) { return end <= from; });
  return seats_->counting() - absent_ - static_cast<uint32_t>(cut);
}

std::span<std::byte> DenseRound::Lendable() {
  const size_t size = tenant_ == kNobody ? accumulator_.size() : lent_.size();  // none if all have referred to memory
  if (widened() || terms().op == Op::kBroadcast || total_ < kLeastLent || size < total_) return {};
  return {sum(), size};
}

// The result stays in place. The memory that was lent before comes back with it, since its rank has nothing left to
// send there.
void DenseRound::Lend(uint32_t rank) {
  ShardBuffer sum = std::move(tenant_ == kNobody ? accumulator_ : lent_);
  accumulator_.Release();
  lent_.Release();
  (rank == kNobody ? accumulator_ : lent_) = std::move(sum);
  tenant_ = lent_to_ = rank;
}

// Everything lies in shared memory: one pass reads each contribution and writes each result, no accumulator.
void DenseRound::FinishReferences(uint32_t from, uint32_t to) {
  sources_.clear();
  destinations_.clear();
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].reference == nullptr) continue;  // absent, or has another seat
    std::byte* const memory = ranks_[rank].reference.get() + from;
    if (Brings(rank)) sources_.push_back(memory);
    if (terms().op != Op::kBroadcast || !Brings(rank)) destinations_.push_back(memory);
  }
  if (terms().op == Op::kBroadcast) {
    for (void* destination : destinations_) std::memcpy(destination, sources_[0], to - from);
    return;
  }
  kernels::ReduceMany(terms().op, work_, destinations_, sources_, (to - from) / SizeOf(work_), Divisor(from));
}

void DenseRound::Finish(uint32_t from, uint32_t to) {
  const size_t count = (to - from) / SizeOf(work_);
  AddAside(to);  // there is something if the tenant is not the root, absent, or has referred to shared memory
  std::byte* const sum = this->sum() + Widened(from);
  std::byte* const out = const_cast<std::byte*>(result()) + from;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const Contribution& contribution = ranks_[rank];
    if (contribution.reference == nullptr || !Brings(rank)) continue;
    if (filled_.end > from) {
      kernels::Accumulate(terms().op, work_, sum, contribution.reference.get() + from, count);
    } else {
      kernels::Widen(work_, sum, contribution.reference.get() + from, count);
      filled_.end = to;
    }
  }
  const uint32_t divisor = Divisor(from);
  if (divisor != 1 || out != sum) kernels::Finalize(work_, out, sum, count, divisor);
}

void DenseRound::ReturnReferences(uint32_t from, uint32_t to) {
  const std::byte* const out = result() + from;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].reference != nullptr && (terms().op != Op::kBroadcast || !Brings(rank)))
      std::memcpy(ranks_[rank].reference.get() + from, out, to - from);
}

}  // namespace byteps_like
