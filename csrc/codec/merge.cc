#include "csrc/codec/merge.h"

#include <cstring>

namespace byteps_like {

void MergeCodec::Residual(std::span<const float> x, const Draw&, const std::byte*, std::byte*, Bytes,
                          float* residual) const {
  std::memset(residual, 0, x.size_bytes());
}

// The bytes of an index that has come whole, and is right; 0: more has to come.
Result<uint32_t> MergeCodec::IndexIn(uint32_t numel, Bytes begin, uint32_t bytes) const {
  auto length = IndexBytes(numel, begin);
  if (!length.ok()) return length;
  if (*length > bytes) return Status(Code::kCorrupt, spec() + ": a payload shorter than its index");
  if (begin.size() < *length) return uint32_t{0};
  Status right = CheckIndex(numel, begin.first(*length), bytes);
  if (!right.ok()) return right;
  return length;
}

Result<uint32_t> MergeCodec::Check(uint32_t numel, Bytes payload) const {
  return IndexIn(numel, payload, static_cast<uint32_t>(payload.size()));
}

Result<bool> MergeCodec::Join(uint32_t numel, Bytes begin, uint32_t bytes, MergeCursor& cursor,
                              std::byte* accumulator) const {
  auto length = IndexIn(numel, begin, bytes);
  if (!length.ok()) return length.status();
  if (*length == 0) return false;
  cursor = {Unite(numel, begin.first(*length), accumulator), *length};
  return true;
}

Status MergeCodec::Accumulate(uint32_t numel, Bytes payload, std::byte*, std::byte* accumulator) const {
  MergeCursor cursor;
  auto joined = Join(numel, payload, static_cast<uint32_t>(payload.size()), cursor, accumulator);
  if (!joined.ok()) return joined.status();
  Add(numel, payload, cursor, accumulator);
  return {};
}

uint32_t MergeCodec::Emit(uint32_t numel, uint32_t, const Draw&, std::byte*, std::byte* accumulator,
                          std::byte* result) const {
  MergeCursor cursor = EmitIndex(numel, accumulator, result);
  EmitUntil(numel, kNoUnit, cursor, accumulator, result);
  return cursor.bytes;
}

}  // namespace byteps_like
