// What is in flight: an operation is what a caller waits for, a part is one partition's round.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"

namespace byteps_like {

class Channel;

struct Operation {
  std::atomic<uint32_t> remaining{0};  // parts that have not landed
  std::atomic<bool> moves{false};      // all ranks know where the tensor goes next: said of its first part
  Status status;                       // written before `remaining` becomes 0
  uint64_t key = 0;                    // of its first part, for the timeline

  bool done() const { return remaining.load(std::memory_order_acquire) == 0; }
};

// Fixed at Declare: key, offset, total, dtype, channel. Set by Submit, before the I/O thread sees the part: the
// request. The rest belongs to the I/O thread.
struct Part {
  uint64_t key = 0;
  uint64_t offset = 0;
  uint32_t total = 0;
  DType dtype{};
  Channel* channel = nullptr;

  std::shared_ptr<Operation> operation;  // non-null: in flight (under the engine's mutex)
  std::byte* address = nullptr;          // of this partition
  Op op = Op::kSum;
  uint32_t root = 0;
  int32_t priority = 0;
  bool movable = false;

  uint64_t order = 0;
  uint32_t round = 0;
  uint32_t sent = 0;      // prefix of the contribution handed to the link
  uint32_t landed = 0;    // prefix of the result that is in place
  size_t slot = 0;        // index among its channel's parts in flight
  bool queued = false;    // in its channel's queue
  bool begun = false;     // its first frame went out
  bool resuming = false;  // waits for kResumed on a new link
  bool streamed = false;  // its bytes go over the link: not by reference

  struct {
    int64_t ready = 0, sent = 0, landed = 0;  // TraceClock: submitted, first frame out, first bytes in
  } traced;                                   // 0 while nobody records
};

}  // namespace byteps_like
