// Messages between ranks over the mesh: matched by (peer, lane, call, tag), each with a length that both ends know.
// Collective schedules and point-to-point calls are written on top of it. Loop thread only, except where said.
//
// A message is eager: its first bytes may arrive before the receiver has posted it, and are then stashed. Per link at
// most kEagerBytes may be stashed; beyond that the sender waits until the receiver says that the call has begun there
// (kClear), which the sender asks for with its first frame when it knows that it will need it. Control frames always
// pass, so calls of different lanes that begin in different orders on two ranks cannot block each other.
//
// Send order on a link: by class, then priority, then age. Preemption happens between segments.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/completion.h"
#include "collectives/mesh/mesh.h"
#include "csrc/base/dtype.h"
#include "csrc/base/status.h"

namespace byteps_like {

inline constexpr size_t kEagerBytes = 1u << 20;  // per link and direction: kept at most for calls that have not begun

// The lowest class is sent first.
enum class TrafficClass : uint8_t { kControl = 0, kAllToAll = 1, kPointToPoint = 2, kGradient = 3, kBulk = 4 };

// A call is one collective on one lane (process group), or one send or receive. `call` counts the calls of a lane.
struct CallId {
  uint64_t lane = 0;
  uint32_t call = 0;
  bool operator==(const CallId&) const = default;
};

class Exchange;

// Both are owned by the caller, linked into the exchange from Post until done or Forget.
struct SendMessage {
  uint32_t peer = 0;  // world rank
  uint32_t tag = 0;   // unique among the messages of one call to one peer
  const std::byte* data = nullptr;
  uint64_t length = 0;  // may be 0: the message is still sent and matched
  uint64_t ready = 0;   // prefix that may be read now; raised by the caller, then Exchange::Advance
  uint64_t sent = 0;    // prefix handed to the wire: its memory may change (kept by the exchange)
  TrafficClass traffic = TrafficClass::kGradient;
  int32_t priority = 0;
  uint32_t segment_bytes = kDefaultSegment;
  struct Hook* hook = nullptr;  // of the exchange
};

struct ReceiveMessage {
  uint32_t peer = 0;
  uint32_t tag = 0;
  uint64_t length = 0;
  uint64_t received = 0;        // prefix that OnBytes was called for (kept by the exchange)
  struct Hook* hook = nullptr;  // of the exchange
};

// One call as the exchange sees it: the ranks that take part, and what they must agree on.
class Call {
 public:
  virtual ~Call() = default;
  CallId id;
  // Describes in words what must be equal on all ranks: "all_reduce sum float32[1000], ring". Sent with the first frame
  // to each peer and compared; at most 512 bytes. Empty: nothing to compare (point to point).
  std::string description;
  std::vector<uint32_t> ranks;  // of the group, by world rank: those told when the call fails

  // message.sent has grown; complete when it equals length. Called once for an empty message, too.
  virtual void OnSent(SendMessage& message) = 0;
  // Where the next bytes of the message, from `message.received` on, may go: `length` bytes that stay valid until
  // OnBytes, or kAnywhere: they are only looked at in OnBytes. nullptr: not now; the exchange stashes them and asks
  // again on Retry(message).
  virtual std::byte* PlaceFor(ReceiveMessage& message, uint64_t offset, uint32_t length) = 0;
  // `bytes` lie where PlaceFor said. For an empty message: once, without PlaceFor, with length 0.
  virtual void OnBytes(ReceiveMessage& message, uint64_t offset, const std::byte* bytes, uint32_t length) = 0;
  // The call can't end: a peer was lost, disagrees, or failed it. Called once. The exchange has forgotten its messages
  // by then, and no peer writes to the offered places any more.
  virtual void OnFailed(const Status& why) = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual uint32_t rank() const = 0;
  virtual EventLoop& loop() = 0;
  // For Completion::WaitDriving of calls over this exchange; may be nullptr. Any thread.
  virtual std::shared_ptr<LoopGate> gate() { return nullptr; }

  // Begins a call: from here on its frames are taken. kMismatch at once if a peer's description differs already,
  // kPeerLost if one of its ranks is lost (call.OnFailed is not called then).
  virtual Status Begin(Call& call) = 0;
  virtual void Post(Call& call, SendMessage& message) = 0;
  virtual void Post(Call& call, ReceiveMessage& message) = 0;
  // message.ready was raised. Less than a segment waits for more bytes, unless it ends the message.
  virtual void Advance(SendMessage& message) = 0;
  virtual void Retry(ReceiveMessage& message) = 0;  // PlaceFor may succeed now
  // Whether links to the peer can write messages of this length to their places by themselves, and had better. Else
  // Offer is in vain.
  virtual bool TakesOffers(uint32_t /*peer*/, uint64_t /*length*/) { return false; }
  // After Post. All of the message goes to `place`, from offset 0 on, and until it is complete, nothing else may write
  // there or read beyond the bytes that OnBytes has reported: where links support it, bytes arrive there before they
  // are reported.
  virtual void Offer(ReceiveMessage& /*message*/, std::byte* /*place*/) {}
  virtual void End(Call& call) = 0;  // all its messages are done; it may be destroyed
  // Gives the call up here and tells all its ranks why: their OnFailed is called with it. True: the exchange has
  // forgotten the call. False: peers may still write to places that were offered: OnFailed(why) follows here, too, when
  // they don't any more. Its memory is its own until then, no other call of it is made.
  virtual bool Abort(Call& call, const Status& why) = 0;
  // Does not wait for that: cuts the links. The exchange has forgotten the call when this returns.
  virtual void Sever(Call& /*call*/) {}
  // For messages when a deadline passes: "rank 2 has not begun this call (it is in: broadcast ...)", for each peer that
  // has sent nothing in this call; empty if all have.
  virtual std::string Silent(const Call& call) = 0;
  // Asks all ranks of the call for a sign of life; Silent names the ranks that have not given one since.
  virtual void Probe(Call& call) = 0;
};

}  // namespace byteps_like
