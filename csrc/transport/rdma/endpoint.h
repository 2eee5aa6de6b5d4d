// One end of an rdma connection: its queue pairs, the memory that messages lie in, their order, and the credit that
// keeps either end from overrunning the other (wire.h). Knows nothing of streams and frames.
//
// One thread at a time.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/transport/rdma/verbs/block.h"
#include "csrc/transport/rdma/verbs/queue_pair.h"
#include "csrc/transport/rdma/wire.h"

namespace byteps_like::rdma {

// A message that came, the next one in order.
struct Arrival {
  const Envelope* envelope = nullptr;  // nullptr: a piece
  std::byte* content = nullptr;        // behind the envelope; nullptr for a piece, whose place the user knows
  uint32_t bytes = 0;                  // of content, or of the piece
};

// A piece of payload that is to be sent.
struct Piece {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;                   // kSlotBytes at most, if it is copied or goes to a slot
  const DeviceKeys* keys = nullptr;     // of registered memory, unchanged until it is delivered; nullptr: copied
  uint64_t to = 0;                      // address at the peer; 0: its next slot
  const uint32_t* peer_keys = nullptr;  // for `to`, by queue pair
};

inline constexpr uint32_t kNoTag = ~0u;
// Tells what a completion belongs to: a receive (lane and buffer), a probe (lane) or a send (its number).
inline constexpr uint64_t kReceive = 1ull << 32, kProbe = 1ull << 33;

class Endpoint {
 public:
  class User {
   public:
    virtual void OnDelivered(uint32_t tag) = 0;  // a message sent with this tag lies in the peer's memory

   protected:
    ~User() = default;
  };

  // `peer` for messages: "rdma 10.0.0.2:4711".
  static Result<std::unique_ptr<Endpoint>> Make(std::string peer, uint32_t queue_pairs);
  ~Endpoint();

  // To begin: for each queue pair in turn, Add, then Connect with the peer's reply.
  Status Add(CmId id, const Options& options);  // takes receives from here on
  Status Connect(uint32_t index, const Greeting& peer);
  Greeting GreetingOf(uint32_t index) const;  // `connection` is the caller's
  // Called once the peer has proven its identity: it may write from here on. Returns what to tell it: where its pieces
  // land.
  Result<PlaceOffer> Open();
  void OnOpen(const PlaceOffer& slots);  // the peer's word: before it there is no place for pieces
  QueuePair& queue_pair(uint32_t index) const { return *lanes_[index].pair; }
  std::vector<const Device*> devices() const;
  uint32_t device_of(uint32_t index) const { return lanes_[index].port; }  // of a queue pair, in devices()
  uint32_t queue_pairs() const { return static_cast<uint32_t>(lanes_.size()); }
  const CmChannel& channel() const { return channel_; }
  const std::string& peer() const { return peer_; }

  // Waiting: after Sleep has returned true, an event on one of fds() follows once there is something to Poll for.
  std::vector<int> fds() const;
  void TakeEvents();  // after such an event
  bool Sleep();
  void Await(Deadline until);  // blocks, asleep, until there may be something to Poll for

  // Processes completions and returns their number. A failure stays in failure() from then on; messages that came
  // before it must still be taken.
  size_t Poll();
  const Status& failure() const { return failure_; }

  // Receiving.
  const Arrival* Front();  // nullptr: nothing now
  void Pop();              // done with it: its memory may be written again
  std::byte* TakeSlot() { return slots_.data() + size_t{slots_taken_++ % kSlots} * kSlotBytes; }  // of the next piece
  void FreeSlot() { ++freed_; }  // the first one that was taken and not freed

  // Sending.
  bool may_send() const { return sent_ - taken_ < kWindow && !sends_[sent_ % kDepth].under_way; }
  std::byte* content();  // where the next eager message's content is to be written
  Status SendEager(const Envelope& envelope, uint32_t bytes, uint32_t tag);
  bool may_send(const Piece& piece) const;
  Status Send(const Piece& piece, uint32_t tag);
  Status GiveCredit();  // if it is due and there is room
  Status SendFin();
  // Writes zero bytes over each idle queue pair: if its path is gone, that fails as a message would. The peer's process
  // is not involved.
  void Probe();
  uint32_t under_way() const { return under_way_; }  // messages sent and not acknowledged
  uint64_t bytes_under_way() const { return bytes_under_way_; }
  void SetUser(User* user) { user_ = user; }  // nullptr: none

  void Break(Code code, const std::string& why);  // failure() from here on, if there was none

  // Nothing more is sent or lands in memory after this; the peer learns that we went.
  void Fail();

 private:
  struct Port {  // the resources of one device
    Device* device;
    std::unique_ptr<Completions> completions;
    Registration eager, slots, copies;
  };
  struct Lane {  // one queue pair
    uint32_t port = 0;
    uint32_t peer_slots_key = 0;
    bool probing = false;
    uint64_t bytes_under_way = 0;
    Block receives;
    Registration region;
    std::unique_ptr<QueuePair> pair;  // ends before its memory does
  };
  struct Sent {
    bool under_way = false;
    uint8_t lane = 0;
    uint32_t number = 0, bytes = 0, tag = 0;
  };
  struct Came {
    bool here = false, eager = false;
    uint8_t lane = 0, buffer = 0;
    uint32_t bytes = 0;
  };

  Endpoint(std::string peer, uint32_t queue_pairs) : peer_(std::move(peer)), lanes_(queue_pairs) {}
  Result<uint32_t> PortOf(Device* device);
  Result<std::byte*> Copy(const Piece& piece);
  Status MakeCopies();
  Status PostReceive(uint32_t lane, uint32_t buffer);
  std::byte* BufferOf(const Came& came) const;
  void TakeCmEvents();
  void OnCompletion(const verbs::Wc& done);
  void OnReceived(const verbs::Wc& done);
  void OnSent(uint32_t number);
  void OnFailed(const verbs::Wc& done);
  void Heed(const Envelope& envelope);
  uint32_t LeastBusy() const;
  Status Post(uint32_t lane, verbs::SendWr& request, verbs::Sge piece, uint32_t tag);
  bool has_room() const { return sent_ - taken_ < kDepth && !sends_[sent_ % kDepth].under_way; }

  const std::string peer_;
  CmChannel channel_;
  Block eager_, slots_, copies_;  // of sends; landing; of sends from memory that is not registered
  std::vector<Port> ports_;
  std::vector<Lane> lanes_;
  uint32_t added_ = 0;
  uint64_t peer_slots_ = 0;  // 0: not said yet
  User* user_ = nullptr;
  Status failure_;
  bool disconnected_ = false;
  bool dead_ = false;

  std::array<Came, kDepth> came_{};  // by number
  uint32_t next_ = 0;                // number of the message to be taken next: how many were consumed
  uint32_t freed_ = 0;               // slots
  uint32_t told_consumed_ = 0, told_freed_ = 0;
  uint32_t slots_taken_ = 0;
  Arrival front_;

  std::array<Sent, kDepth> sends_{};  // by number
  uint32_t sent_ = 0;                 // number of the next message
  uint32_t taken_ = 0;                // messages that the peer has consumed
  uint32_t slots_used_ = 0, slots_freed_ = 0;
  uint32_t copied_ = 0;
  std::array<uint32_t, kSlots> copies_by_{};  // number of the message that was sent from each last
  uint32_t under_way_ = 0;
  uint64_t bytes_under_way_ = 0;
};

}  // namespace byteps_like::rdma
