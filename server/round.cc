#include "server/round.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "csrc/kernels/kernels.h"
#include "csrc/transport/link.h"

namespace byteps_like {
namespace {

constexpr uint32_t kBlock = 32u << 10;  // what is summed and copied out together: stays in the first-level cache

std::string Join(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

std::string DescribeHeader(const Header& header) {
  std::string text = NameOf(header.op);
  if (header.op == Op::kBroadcast) text += " from root " + std::to_string(header.root);
  return text + " of " + std::to_string(header.total) + " bytes of " + NameOf(header.dtype);
}

void AlignedBuffer::Allocate(size_t bytes) {
  if (bytes <= size_) return;
  data_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(4096))));
  size_ = bytes;
}

void Round::Begin(const Header& first, uint32_t world_size) {
  active_ = true;
  number_ = first.round;
  total_ = first.total;
  dtype_ = first.dtype;
  op_ = first.op;
  work_ = op_ == Op::kBroadcast ? DType::kUInt8 : dtype_;
  root_ = first.op == Op::kBroadcast ? first.root : 0;
  opened_by_ = first.rank;
  priority_ = first.priority;
  movable_ = true;
  segment_ = begun_ = references_ = accumulated_ = complete_ = 0;
  direct_ = nullptr;
  ranks_.assign(world_size, Contribution{});
  Touch();
}

void Round::Touch() {
  last_progress_ = Clock::now();
  warnings_ = 0;
}

bool Round::WarnOnce(uint32_t warnings) {
  if (warnings <= warnings_) return false;
  warnings_ = warnings;
  return true;
}

Header Round::Describe() const {
  Header header;
  header.round = number_;
  header.dtype = dtype_;
  header.op = op_;
  header.root = root_;
  header.total = total_;
  header.priority = priority_;
  return header;
}

void Round::Release() { active_ = false; }

bool Round::delivered() const {
  const auto has_all = [this](const Contribution& one) { return one.sent == total_ && !one.queued; };
  return !active_ || std::all_of(ranks_.begin(), ranks_.end(), has_all);
}

std::string Round::Disagreement(const Header& header) const {
  const bool same = header.total == total_ && header.dtype == dtype_ && header.op == op_ &&
                    (op_ != Op::kBroadcast || header.root == root_);
  if (same) return "";
  std::vector<uint32_t> others;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].begun || rank == opened_by_) others.push_back(rank);
  return "rank " + std::to_string(header.rank) + " sent " + DescribeHeader(header) + ", but " + Join(others) +
         " sent " + DescribeHeader(Describe());
}

size_t Round::Widened(uint32_t bytes) const { return bytes / SizeOf(work_) * SizeOf(AccumulatorOf(work_)); }

void Round::MarkBegun(Contribution& contribution) {
  Touch();
  if (contribution.begun) return;
  contribution.begun = true;
  ++begun_;
}

size_t Round::NeededMemory() const { return Widened(total_) + (AccumulatorOf(work_) == work_ ? 0 : total_); }

void Round::Reserve() {
  accumulator_.Allocate(Widened(total_));
  if (AccumulatorOf(work_) != work_) result_.Allocate(total_);
}

std::byte* Round::PlaceDirect(Link& link, const Header& header) {
  if (AccumulatorOf(work_) != work_ || (op_ == Op::kBroadcast && header.rank != root_)) return nullptr;
  if (direct_ != nullptr || header.offset != accumulated_ || ranks_[header.rank].counted != accumulated_)
    return nullptr;
  direct_ = &link;
  return accumulator_.data() + accumulated_;
}

void Round::Abandon(const Link& link) {
  if (direct_ == &link) direct_ = nullptr;
}

Link* Round::InTheWay(const Link& link, const Header& header) const {
  const bool fills = header.offset + header.length > accumulated_;
  return fills && direct_ != &link ? direct_ : nullptr;
}

void Round::Landed(const Link& link, const Header& header, const std::byte* payload) {
  Contribution& contribution = ranks_[header.rank];
  MarkBegun(contribution);
  segment_ = std::max(segment_, header.length);
  const auto begin = static_cast<uint32_t>(header.offset);
  const uint32_t end = begin + header.length;
  if (direct_ == &link) {
    direct_ = nullptr;
    accumulated_ = contribution.counted = end;
    return;
  }
  if (end <= contribution.counted) return;  // a repetition after a new link: it is in the sum already
  const uint32_t fresh = std::max(begin, contribution.counted);
  Count(fresh, payload + (fresh - begin), end - fresh);
  contribution.counted = end;
}

void Round::Count(uint32_t offset, const std::byte* payload, uint32_t length) {
  const size_t size = SizeOf(work_);
  const uint32_t added = offset < accumulated_ ? std::min(length, accumulated_ - offset) : 0;
  std::byte* const place = accumulator_.data();
  if (added > 0) kernels::Accumulate(op_, work_, place + Widened(offset), payload, added / size);
  if (added == length) return;
  kernels::Widen(work_, place + Widened(offset + added), payload + added, (length - added) / size);
  accumulated_ = offset + length;
}

void Round::Refer(uint32_t rank, std::byte* memory) {
  Contribution& contribution = ranks_[rank];
  if (!contribution.begun) ++references_;
  MarkBegun(contribution);
  contribution.reference = memory;
  contribution.counted = total_;
}

void Round::Subscribe(uint32_t rank) {
  MarkBegun(ranks_[rank]);
  ranks_[rank].counted = total_;
}

uint32_t Round::Ready() const {
  if (begun_ < ranks_.size()) return 0;
  uint32_t ready = total_;
  for (const Contribution& contribution : ranks_) ready = std::min(ready, contribution.counted);
  return ready;
}

bool Round::Advance() {
  const uint32_t ready = Ready();
  if (ready <= complete_) return false;
  if (references_ == ranks_.size()) {
    FinishReferences(complete_, ready);
  } else {
    for (uint32_t from = complete_; from < ready; from += kBlock) Finish(from, std::min(from + kBlock, ready));
  }
  complete_ = ready;
  Touch();
  return true;
}

// Everything lies in shared memory: one pass reads each contribution and writes each result, no accumulator.
void Round::FinishReferences(uint32_t from, uint32_t to) {
  sources_.clear();
  destinations_.clear();
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    std::byte* const memory = ranks_[rank].reference + from;
    if (op_ != Op::kBroadcast || rank == root_) sources_.push_back(memory);
    if (op_ != Op::kBroadcast || rank != root_) destinations_.push_back(memory);
  }
  if (op_ == Op::kBroadcast) {
    for (void* destination : destinations_) std::memcpy(destination, sources_[0], to - from);
    return;
  }
  const uint32_t divisor = op_ == Op::kAverage ? static_cast<uint32_t>(ranks_.size()) : 1;
  kernels::ReduceMany(op_, work_, destinations_, sources_, (to - from) / SizeOf(work_), divisor);
}

void Round::Finish(uint32_t from, uint32_t to) {
  const size_t count = (to - from) / SizeOf(work_);
  std::byte* const sum = accumulator_.data() + Widened(from);
  std::byte* const out = const_cast<std::byte*>(result()) + from;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const Contribution& contribution = ranks_[rank];
    if (contribution.reference == nullptr || (op_ == Op::kBroadcast && rank != root_)) continue;
    if (accumulated_ > from) {
      kernels::Accumulate(op_, work_, sum, contribution.reference + from, count);
    } else {
      kernels::Widen(work_, sum, contribution.reference + from, count);
      accumulated_ = to;
    }
  }
  const uint32_t divisor = op_ == Op::kAverage ? static_cast<uint32_t>(ranks_.size()) : 1;
  if (divisor != 1 || out != sum) kernels::Finalize(work_, out, sum, count, divisor);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].reference != nullptr && (op_ != Op::kBroadcast || rank != root_))
      std::memcpy(ranks_[rank].reference + from, out, to - from);
}

std::string Round::WaitingFor() const {
  std::vector<uint32_t> missing, present;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) (Has(rank) ? present : missing).push_back(rank);
  return "waiting for " + Join(missing) + (present.empty() ? "" : "; have " + Join(present));
}

}  // namespace byteps_like
