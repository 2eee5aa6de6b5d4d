// Work in flight. A caller waits for an operation; a part of it is one partition's round.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"
#include "csrc/engine/bounce_buffers.h"
#include "csrc/engine/losses/absences.h"
#include "csrc/engine/losses/held_result.h"

namespace byteps_like {

class Channel;
class GpuGate;
class SharedBuffer;
struct Coding;
struct Staging;

struct Operation : std::enable_shared_from_this<Operation> {  // so that owners in Python are owners here
  std::atomic<uint32_t> remaining{0};                         // parts that have not landed
  std::atomic<bool> moves{false};        // all ranks know where the tensor goes next: said of its first part
  Status status;                         // written before `remaining` becomes 0, as the next
  std::vector<Absence> absences;         // of ranks that are gone: what of them is not in the result
  Status given_up;                       // of the I/O thread: its remaining parts end with this
  uint64_t key = 0;                      // of its first part, for the timeline
  std::shared_ptr<SharedBuffer> memory;  // that it reads and writes, if that is shared: mapped until it has ended
  std::shared_ptr<GpuGate> gate;         // where streams of a GPU wait for it; nullptr: its tensor is on none

  bool done() const { return remaining.load() == 0; }
};

// One shard among all servers.
struct ShardNumber {
  static constexpr uint32_t kNone = ~0u;
  uint32_t server = kNone, shard = 0;
  bool none() const { return server == kNone; }
  bool operator==(const ShardNumber&) const = default;
};

// What a partition waits for, whose server has died, at the shard that adopts it: nothing (any more); word how it goes
// on; the result of its round, which other ranks have.
enum class AdoptionStage : uint8_t { kOver, kAsked, kTaking };

// In the keys of preludes, which are rounds of their own; never in those of tensors.
inline constexpr uint64_t kPreludeKey = uint64_t{1} << 63;

// Fixed at Declare: key, offset, bytes, absent, owner, coding (and without a codec total, dtype). Set by
// Submit or a codec thread, before the I/O thread sees the part: the request. The rest belongs to the I/O thread.
struct Part {
  uint64_t key = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;   // of the partition
  uint32_t weight = 0;  // the most that a round of it sends
  Channel* channel = nullptr;
  uint32_t home = 0;           // index of that at first
  bool absent = false;         // this rank takes part in its rounds, brings nothing and wants nothing
  ShardNumber owner;           // of its sums, if that is another shard than the channel's: an aggregator hears of it
  Coding* coding = nullptr;    // its codec's; nullptr: there is none
  Staging* staging = nullptr;  // of tensors that have come from a GPU; nullptr: it has not

  uint32_t total = 0;  // what goes over the wire
  DType dtype{};
  bool encoded = false;  // frames say so: bytes of a payload, whose sum has a size of its own

  std::shared_ptr<Operation> operation;  // non-null: in flight (under the engine's mutex); of preludes always null
  std::byte* address = nullptr;          // of `total` bytes, and of the result
  Op op = Op::kSum;
  uint32_t root = 0;
  bool brings = true;  // bytes, and not only a word: else it takes part in a broadcast of another rank's
  int32_t priority = 0;
  bool movable = false;
  uint32_t absentees = 0;  // of the ranks for which it is pushed: those that bring nothing

  uint64_t order = 0;
  uint32_t round = 0;
  uint32_t pending = 0;           // bytes at its end that are not there yet: Channel::Grown will tell
  uint32_t sent = 0;              // prefix of the contribution handed to the link
  uint32_t landed = 0;            // prefix of the result that is in place
  uint32_t expected = 0;          // bytes of the result; encoded: 0 until its first frame
  std::vector<Absence> absences;  // of its last result; whoever decodes that reads them
  size_t slot = 0;                // index among its channel's parts in flight
  bool queued = false;            // in its channel's queue
  uint32_t waiting = 0;           // places that it has in there, of which the queue passes over all but one
  bool told_owner = false;        // by the present link
  bool begun = false;             // its first frame went out
  bool resuming = false;          // waits for kResumed on a new link
  bool streamed = false;          // its bytes go over the link: not by reference
  bool retired = false;
  AdoptionStage adoption = AdoptionStage::kOver;
  std::unique_ptr<HeldResult> held;  // nullptr: none is
  Bounce bounce;  // the shared memory by way of which it goes; none: its own is shared, or it is streamed

  struct {
    int64_t ready = 0, sent = 0, landed = 0;  // TraceClock: submitted, first frame out, first bytes in
  } traced;                                   // 0 while not recording
};

// Where a part goes when a stage is through with it: the engine, as codec threads and stager see it. Any thread. It
// takes the engine's mutex, so none is held here that is taken under that.
class PartSink {
 public:
  virtual void CameDown(Part& part) = 0;                        // it, or its prelude, is in host memory: to be sent
  virtual void Hand(Part& part) = 0;                            // to its channel
  virtual void Returned(Part& part, const Status& status) = 0;  // its result is in host memory
  virtual void Done(Part& part, const Status& status) = 0;      // its last stage is over
  virtual void Fail(Code code, const std::string& text) = 0;    // ends the job here, soon

 protected:
  ~PartSink() = default;
};

}  // namespace byteps_like
