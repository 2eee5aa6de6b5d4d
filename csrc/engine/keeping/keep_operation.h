// Work with values that servers keep, in flight: the opening of a tensor's keys, a contribution to them, or a read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engine/operation.h"
#include "csrc/wire/note.h"

namespace byteps_like {

// Of one key: what became of a contribution to it, or was read of it.
struct KeepOutcome {
  Applied applied = Applied::kCounted;
  uint64_t version = 0;                     // that the contribution is part of, or that was read
  std::vector<uint32_t> contributors = {};  // whose contributions are in that, ascending; none: this one alone
};

struct KeepOperation : Operation {
  std::vector<KeepOutcome> outcomes;  // of each partition; written before `remaining` becomes 0
  std::vector<std::string> answers;   // to what it calls, of each link; before, too
  std::vector<std::byte> initial;     // the first value of the tensor that it opens, on the rank that sets it
  // Of each part what a read has found whose length only its server knows: of a range the ids, then the rows; of some
  // rows, or of a value, what filters have made of them.
  std::vector<std::vector<std::byte>> ranges;
};

// One partition of an operation.
struct KeepTicket {
  std::shared_ptr<KeepOperation> operation;
  size_t index = 0;  // of its outcome
};

// Where what has come of operations, and what servers want, is told of. On the I/O thread.
class KeepSink {
 public:
  virtual void Settled(const KeepTicket& ticket, const Status& status, KeepOutcome outcome) = 0;
  // A key's next version is about to be made without this rank's next contribution; or no longer, as that has gone.
  virtual void CutOff(uint64_t key, bool is_so) = 0;

 protected:
  ~KeepSink() = default;
};

}  // namespace byteps_like
