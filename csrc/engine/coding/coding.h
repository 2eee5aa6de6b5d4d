// A partition of a tensor with a codec, and the stages of its rounds besides the wire.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "csrc/codec/codec.h"
#include "csrc/codec/payload.h"
#include "csrc/engine/buffer_pool.h"
#include "csrc/engine/coding/feedback.h"
#include "csrc/engine/operation.h"
#include "csrc/gpu/codec.h"

namespace byteps_like {

// A codec as a tensor uses it. `text`: what servers are told, the codec's spec, "twoway " before it if they are to keep
// an error feedback of their own.
struct CodecUse {
  std::shared_ptr<const Codec> codec;
  std::string text;
  std::shared_ptr<const GpuCodec> twin = nullptr;  // encodes where the tensor is on a GPU; nullptr: the codec does
};

// The next task of a codec thread for a partition. Later values are more urgent.
enum class CodingStage : uint8_t { kBegin, kEncode, kDecode };

// The fields before `next` are fixed at Declare. `next` is guarded by the engine's mutex. The rest belongs to the
// round's current owner: Submit, then a codec thread, then (while a part of it is on the wire) no thread, then a codec
// thread.
struct Coding {
  const Codec* codec = nullptr;
  const GpuCodec* twin = nullptr;  // nullptr: it is encoded on the CPU
  CodecPlan plan;
  uint32_t numel = 0;
  uint32_t number = 0;    // of the codec, on every link
  uint32_t spec_crc = 0;  // for payload headers
  Part* part = nullptr;   // whose payload goes over the wire; its address, total, dtype and op are the payload's
  std::unique_ptr<Part> prelude;  // nullptr: there is none

  struct {
    Feedback feedback;
    float scale = 1;  // of the residual, once
  } next;

  bool active = false;  // in a round that codec threads encode: not in a broadcast, which goes raw
  bool on_gpu = false;  // in a round that the GPU encodes: the members below then belong to the stager
  float* x = nullptr;   // the partition
  Op op = Op::kSum;     // as asked
  Feedback feedback;    // of the partition
  float scale = 1;
  Draw draw;
  PooledBuffer payload;    // then the result, where it comes when all of the payload has been counted
  PooledBuffer result;     // of a merged round, whose result comes while the payload is on its way; else none
  PooledBuffer agreed;     // the prelude
  PooledBuffer workspace;  // between Prepare and Residual; none: a thread's own will do
  CodingStage stage = CodingStage::kBegin;

  uint32_t head() const { return dense() ? 0 : kPayloadHeader; }            // before a payload or result,
  uint32_t longest() const { return std::max(plan.payload, plan.result); }  // which has so many bytes at most
  bool dense() const { return plan.dense.has_value(); }
  bool merges() const { return codec->trait() == Trait::kMerge; }
  const PooledBuffer& landing() const { return merges() ? result : payload; }  // where the result goes
};

// Where a part's result is wanted. Of an encoded one the length is not known yet: it may take all of it.
inline PooledBuffer PlaceOf(const Part& part) {
  return part.encoded ? part.coding->landing() : PooledBuffer{part.address, part.total};
}

// Where it lands: there, or beside the contribution where that may have to be brought once more, to another server.
inline PooledBuffer LandingOf(const Part& part) {
  const PooledBuffer place = PlaceOf(part);
  return part.held ? PooledBuffer{part.held->Room(place.bytes), place.bytes} : place;
}

}  // namespace byteps_like
