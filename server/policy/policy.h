// A key's policy answers four questions about each of its rounds: which ranks must have contributed (Quorum), how
// contributions combine (Combine), how the sum becomes the result (Update), and which ranks may read it (ReadRule). A
// row of a table (policies.h) composes them; a key is opened with a row and, if that has an update, the state which the
// update keeps for the key.
//
// All of them are asked on the shard's thread, and don't block. Nothing here is asked once per element, and nothing
// but an Update or a ReadRule of its own is asked once per segment: a round asks its quorum when it begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "csrc/base/status.h"

namespace byteps_like {

class Round;
class ShardMemory;
struct Draw;
struct Terms;

inline constexpr uint32_t kNobody = ~0u;  // instead of a rank

// Decides which ranks must have contributed before a result is made. Stateless.
class Quorum {
 public:
  virtual ~Quorum() = default;
  // How many contributions a result needs, of `world` ranks: from 1 to `world`. A rank that is absent has contributed.
  // When too few are left because ranks said goodbye, the round fails.
  virtual uint32_t Least(uint32_t world) const = 0;
  // The only rank that contributes bytes, while all others just subscribe to the result; kNobody if every rank
  // contributes.
  virtual uint32_t Source(const Terms& terms) const;
};

// How contributions combine: a kind of round.
struct Combine {
  // `key`, for random numbers of codecs. `memory` lives longer than the round.
  std::unique_ptr<Round> (*make)(uint64_t key, ShardMemory& memory);
  // Whether it combines contributions while they come. Then no rank's part can be left out any more, and the quorum
  // must be all ranks. Otherwise contributions are staged, and combined when they are whole.
  bool streams;
};

// Transforms the sum of a round before it is read. Holds a key's state, and lives as long as the key.
class Update {
 public:
  virtual ~Update() = default;
  // Called once a round, when all contributions that count are summed: turns the sum, in place, into the result. For
  // arrays, `sum` has the type in `terms`; for a codec's payloads, fp32 (trait "reencode" only). kCapacity.
  virtual Status Apply(const Terms& terms, std::span<std::byte> sum) = 0;
  // Called afterwards if a codec has encoded it as `result`.
  virtual void Encoded(const Terms& terms, const Draw& draw, std::byte* workspace, std::span<const std::byte> result);
};

// Decides which ranks may read the result of a round, and when. Stateless.
class ReadRule {
 public:
  virtual ~ReadRule() = default;
  // The prefix of the result, in bytes, that may be sent to `rank`, which has begun its contribution: at most
  // round.complete(), and never less than before. Not asked about ranks whose contribution is by reference, or absent:
  // they are told when the result is complete.
  virtual uint32_t Readable(const Round& round, uint32_t rank) const = 0;
};

struct PolicyRow {
  const char* name;
  bool (*opens)(const Terms& terms);  // whether it is for rounds of these terms
  const Quorum* quorum;
  const Combine* combine;
  std::unique_ptr<Update> (*update)(ShardMemory& memory) = nullptr;  // nullptr: none, the sum is the result
  const ReadRule* read = nullptr;  // nullptr: every rank that has begun reads the complete prefix (cut-through)
};

// The policy that a round begins with.
struct KeyPolicy {
  const PolicyRow& row;
  Update* update = nullptr;  // the key's, if the row has one
  bool relayed = false;      // the sum is passed on, and the result comes from where it goes
};

}  // namespace byteps_like
