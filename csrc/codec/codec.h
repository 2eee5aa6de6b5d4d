// The interface of a codec for the engine and the server. It turns a partition of fp32 into fewer bytes, sums such
// payloads (without decoding them, where that is possible), and decodes the sum. docs/how-to/compression.md says what
// each codec does; compression/registry.h makes them. A codec is immutable: all methods are const, thread-safe,
// allocate nothing, and are pure functions of their arguments (the same bits on every CPU), so that all memory is the
// caller's.
//
// One round of one partition, on a worker:  Prepare -> (prelude reduced over all ranks: agreed) -> Encode -> Residual,
// and when the result has come Decode. On a server, for what plain addition can't sum:  Reset, Accumulate per
// contribution in any order, Emit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"

namespace byteps_like {

// How payloads are summed: it decides which routes a codec may take and what a server does. Mirrored in
// byteps_like/compression/codec.py.
enum class Trait : uint8_t {
  kOpaque = 0,    // they aren't: gathered, sent from one to one
  kDense = 1,     // linear: an array of Plan::dense, which any reduction sums as it is
  kWidening = 2,  // linear, in a wider type than they come in: needs Accumulate
  kVote = 3,      // counted, then decided
  kMerge = 4,     // a payload of the same kind, but larger: variable sizes; csrc/codec/merge.h
  kReencode = 5,  // decoded, summed in fp32, encoded again
};

// The source of random numbers, besides the codec's own seed. Draws that all ranks share leave `rank` out.
struct Draw {
  uint64_t key = 0;
  uint32_t round = 0;
  uint32_t rank = 0;  // kServerRank: the server's own
};
inline constexpr uint32_t kServerRank = 0xFFFFFFFF;

// Of a partition of some elements: sizes in bytes, none of them 0 but where it says so. Bounds, but for the prelude's.
struct CodecPlan {
  uint32_t prelude = 0;                   // what ranks have to agree on before they encode; 0: nothing
  DType prelude_dtype = DType::kFloat32;  // its elements,
  Op prelude_op = Op::kMax;               // and how it is reduced
  uint32_t payload = 0;                   // of one rank
  uint32_t result = 0;                    // of the sum; kDense: as `payload`
  std::optional<DType> dense = {};        // kDense only: the elements
  uint64_t accumulator = 0;               // on the server; kDense: 0
  uint64_t workspace = 0;                 // for every call below; nothing in it need survive from one to the next, but
                                          // from Prepare to Encode to Residual of one round
};

using Bytes = std::span<const std::byte>;

class Codec {
 public:
  Codec(std::string spec, uint32_t world) : spec_(std::move(spec)), world_(world) {}
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  // All parameters in canonical form, as in "thc:bits=4,granularity=17": two ends whose texts differ don't understand
  // each other.
  const std::string& spec() const { return spec_; }
  uint32_t world() const { return world_; }  // contributions to a full round
  virtual uint8_t id() const = 0;            // in the header of every encoded payload; never reused
  virtual Trait trait() const = 0;
  virtual CodecPlan Plan(uint32_t numel) const = 0;  // numel >= 1

  // `x`: the partition. Fills the prelude (Plan().prelude bytes). Not called if there is none.
  virtual void Prepare(std::span<const float> x, const Draw& draw, std::byte* workspace, std::byte* prelude) const;
  // Writes the payload and returns its bytes (at most Plan().payload). `agreed`: the prelude as reduced.
  virtual uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                          std::byte* payload) const = 0;
  // residual[i] = x[i] - what `payload`, just made from it, says of x[i]. `residual` may be `x`.
  virtual void Residual(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                        Bytes payload, float* residual) const = 0;
  // out[i] = factor * (sum of the `count` contributions), from a result. kCorrupt if it can't be one: any bytes may
  // come. `draw.rank` means nothing.
  virtual Status Decode(Bytes result, uint32_t count, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                        float factor, std::span<float> out) const = 0;
  // For metrics: how many elements the codec cuts off, because they are beyond its range.
  virtual uint32_t Clamped(std::span<const float> x, const Draw& draw, const std::byte* agreed,
                           std::byte* workspace) const;

  // The server's. `accumulator` is aligned to 64 bytes, Plan().accumulator long; not called for kDense and kOpaque.
  virtual void Reset(uint32_t numel, std::byte* accumulator) const;
  virtual Status Accumulate(uint32_t numel, Bytes payload, std::byte* workspace, std::byte* accumulator) const;
  // `accumulator` may be changed. Returns the bytes of the result, at most Plan().result.
  virtual uint32_t Emit(uint32_t numel, uint32_t count, const Draw& draw, std::byte* workspace, std::byte* accumulator,
                        std::byte* result) const;

 private:
  const std::string spec_;
  const uint32_t world_;
};

// A codec whose payload any receiver can decode alone: the sum is made in fp32 and encoded again. The accumulator is
// the sum. The prelude, if any, is not for these.
class ReencodeCodec : public Codec {
 public:
  using Codec::Codec;
  Trait trait() const override { return Trait::kReencode; }
  void Reset(uint32_t numel, std::byte* accumulator) const override;
  Status Accumulate(uint32_t numel, Bytes payload, std::byte* workspace, std::byte* accumulator) const override;
  uint32_t Emit(uint32_t numel, uint32_t count, const Draw& draw, std::byte* workspace, std::byte* accumulator,
                std::byte* result) const override;
  void Residual(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                Bytes payload, float* residual) const override;
  Status Decode(Bytes result, uint32_t count, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                float factor, std::span<float> out) const override;

  // sum[i] = (add ? sum[i] : 0) + factor * decoded[i].
  virtual Status DecodeInto(Bytes payload, float factor, bool add, std::span<float> sum) const = 0;
};

}  // namespace byteps_like
