#include "server/rounds/merge_round.h"

#include <algorithm>

namespace byteps_like {
namespace {

// A result goes out in pieces no shorter, but for its last: every piece has a header of its own.
constexpr uint32_t kLeastPiece = 16 << 10;

}  // namespace

void MergeRound::Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) {
  PayloadRound::Begin(first, terms, policy, seats);
  cursors_.assign(seats.ranks(), MergeCursor{});
  joined_ = 0;
  emitted_ = {};
}

Status MergeRound::Grown(uint32_t rank) {
  const Bytes come = Come(rank);
  MergeCursor& cursor = cursors_[rank];
  if (cursor.bytes == 0) {
    auto joined = Join(rank);
    if (!joined.ok() || !*joined) return joined.status();
  }
  codec().Add(numel_, come.subspan(kPayloadHeader), cursor, sum_.data());
  if (cursor.unit == kNoUnit) Drop(rank);
  return {};
}

// Once its index has come whole.
Result<bool> MergeRound::Join(uint32_t rank) {
  const Bytes come = Come(rank);
  if (come.size() <= kPayloadHeader) return false;
  if (Status right = CheckHeader(rank, come); !right.ok()) return right;
  auto joined = codec().Join(numel_, come.subspan(kPayloadHeader), ranks_[rank].total - kPayloadHeader, cursors_[rank],
                             sum_.data());
  if (!joined.ok()) return Nonsense(rank, joined.status().message());
  joined_ += *joined;
  return joined;
}

// Nothing that is still to come may wait for it.
bool MergeRound::LeaveOut(uint32_t rank) {
  const bool over = PayloadRound::LeaveOut(rank);
  cursors_[rank].unit = kNoUnit;
  return over;
}

// What has been merged of it may have gone out. The units that are missing are zeros, as those are that it didn't send.
void MergeRound::CutShort(uint32_t rank) {
  if (!CountsPart(rank)) return PayloadRound::CutShort(rank);
  MergeCursor& cursor = cursors_[rank];
  const Bytes whole = ZerosFrom(rank, kPayloadHeader + cursor.bytes);
  codec().Add(numel_, whole.subspan(kPayloadHeader), cursor, sum_.data());
  Drop(rank);
}

Result<bool> MergeRound::Advance() {
  if (joined_ == 0 || joined_ + absent_ < least_ || finished()) return false;
  if (total_ == 0)
    if (Status opened = OpenSum(); !opened.ok()) return opened;
  uint32_t final = kNoUnit;
  for (const MergeCursor& cursor : cursors_) final = std::min(final, cursor.unit);
  codec().EmitUntil(numel_, final, emitted_, sum_.data(), ResultBody());
  const uint32_t ready = kPayloadHeader + emitted_.bytes;
  if (ready < total_ && ready - complete_ < kLeastPiece) return false;
  complete_ = ready;
  Touch();
  if (finished()) sum_.Release();
  return true;
}

Status MergeRound::OpenSum() {
  const uint32_t bytes = codec().ResultBytes(numel_, sum_.data());
  if (Status opened = OpenResult(bytes, joined_); !opened.ok()) return opened;
  emitted_ = codec().EmitIndex(numel_, sum_.data(), ResultBody());
  total_ = kPayloadHeader + bytes;
  return {};
}

}  // namespace byteps_like
