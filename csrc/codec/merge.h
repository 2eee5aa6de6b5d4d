// Codecs of sums that grow: a payload is an index, which says what units of the partition (blocks, elements) it has,
// and behind it the values of these units in ascending order. So the index of the sum is known when the indexes of all
// contributions are, and a value of it when all that have its unit have brought theirs: a server can answer while it
// receives. (OmniReduce, Fei et al., SIGCOMM 2021, with the bits of all blocks first, not from block to block.)
#pragma once

#include "csrc/codec/codec.h"

namespace byteps_like {

inline constexpr uint32_t kNoUnit = 0xFFFFFFFF;

// How far a payload or a result has been gone through.
struct MergeCursor {
  uint32_t unit = 0;   // the first of its units that is left; kNoUnit: none is
  uint32_t bytes = 0;  // of it that are done with, its index and the values before that unit; 0: nothing is
};

class MergeCodec : public Codec {
 public:
  using Codec::Codec;
  Trait trait() const final { return Trait::kMerge; }
  // Elements that are not in the index are zero, so nothing is left out.
  void Residual(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                Bytes payload, float* residual) const override;
  // Of whole payloads, by the steps below.
  Status Accumulate(uint32_t numel, Bytes payload, std::byte* workspace, std::byte* accumulator) const final;
  uint32_t Emit(uint32_t numel, uint32_t count, const Draw& draw, std::byte* workspace, std::byte* accumulator,
                std::byte* result) const final;

  // A server's steps, after Reset. `begin`: what has come of a payload of `bytes` bytes, aligned to 4.
  //
  // Takes its index into the sum's, and sets the cursor behind it; false: it has not come whole. kCorrupt.
  Result<bool> Join(uint32_t numel, Bytes begin, uint32_t bytes, MergeCursor& cursor, std::byte* accumulator) const;
  // Adds the units after the cursor that have come whole, in the order of the calls. It has joined.
  virtual void Add(uint32_t numel, Bytes begin, MergeCursor& cursor, std::byte* accumulator) const = 0;
  // When all have joined: the bytes of the result, at most Plan().result; then its index, and the cursor behind it.
  virtual uint32_t ResultBytes(uint32_t numel, const std::byte* accumulator) const = 0;
  virtual MergeCursor EmitIndex(uint32_t numel, const std::byte* accumulator, std::byte* result) const = 0;
  // Its values before `unit`, to which nothing will be added any more: no cursor of a payload is before it.
  virtual void EmitUntil(uint32_t numel, uint32_t unit, MergeCursor& cursor, const std::byte* accumulator,
                         std::byte* result) const = 0;

 protected:
  // Bytes of the index that a payload or result begins with, as far as these first ones tell: never fewer than have to
  // be there for it to be longer. kCorrupt.
  virtual Result<uint32_t> IndexBytes(uint32_t numel, Bytes begin) const = 0;
  // kCorrupt: it is no index, or not of that many bytes with the values behind it.
  virtual Status CheckIndex(uint32_t numel, Bytes index, uint32_t bytes) const = 0;
  // Takes it into the sum's; returns its first unit.
  virtual uint32_t Unite(uint32_t numel, Bytes index, std::byte* accumulator) const = 0;
  // Of a whole payload or result: the bytes of its index. kCorrupt.
  Result<uint32_t> Check(uint32_t numel, Bytes payload) const;

 private:
  Result<uint32_t> IndexIn(uint32_t numel, Bytes begin, uint32_t bytes) const;
};

}  // namespace byteps_like
