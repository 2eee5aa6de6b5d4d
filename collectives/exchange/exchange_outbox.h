// The queue of one way to one peer: control frames go first, then messages by class, priority and age, a segment at a
// time. Keeps the sender's half of the eager limit: a message whose call the peer is not known to have begun is sent
// within the limit or waits.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "collectives/exchange/exchange.h"

namespace byteps_like {

// Messages up to this long may be eager.
inline constexpr uint32_t kEagerMessage = 64u << 10;
// The lanes of point to point calls have this bit, those of collectives don't.
inline constexpr uint64_t kPointLane = 1ull << 63;
// DATA carries the length of its message: the low half in aux, the high one in total, beside this mark.
inline constexpr uint32_t kEagerMark = 1u << 16;
// Bytes of why a call has failed, as peers are told.
inline constexpr size_t kMostAbortText = 8u << 10;

inline uint64_t MessageLength(const Header& header) {
  return (static_cast<uint64_t>(header.total & 0xFFFF) << 32) | header.aux;
}
inline bool IsEager(const Header& header) { return (header.total & kEagerMark) != 0; }

struct Hook {};  // the exchange's side of a message

// The state of one call between two ranks, as they have told each other; for point to point, of one message.
struct Flow {
  WayTo to;                  // one way, so that its frames stay in order
  CallId id;                 // as on the wire
  uint32_t tag = 0;          // point to point only
  uint64_t length = 0;       // likewise
  bool cleared = false;      // its messages may be sent whole
  bool asked = false;        // we have asked for that
  bool launched = false;     // we have sent the call's description
  bool heard = false;        // the peer has begun it
  bool wants_clear = false;  // the peer has asked, and we have not begun
  bool probed = false;       // we have asked for a sign of life, and nothing has come since
  bool described = false;
  std::string description;  // the peer's, if described
  size_t charged = 0;       // to the peer, for all that it has said about the call
};

struct Outbound;

class Sender {  // whom an outbound message belongs to
 public:
  virtual void OnSent(Outbound& out) = 0;  // out.message->sent has grown; last: it may be destroyed
  // The first words to the peer about this flow; asks for a CLEAR if `ask`.
  virtual void Launch(Flow& flow, bool ask) = 0;

 protected:
  ~Sender() = default;
};

struct Outbound : Hook {
  SendMessage* message = nullptr;
  Flow* flow = nullptr;
  Sender* owner = nullptr;
  uint64_t order = 0;  // age
  uint64_t next = 0;   // prefix that the link has asked for
  bool begun = false;  // a frame of it was asked for: an empty message has one, too
  bool queued = false, parked = false;
  Outbound *before = nullptr, *after = nullptr;
  size_t slot = 0;  // of its owner

  // Sends whole segments and the end of the message: many small pieces would cost more than they gain.
  bool HasMore() const {
    if (message->length == 0) return !begun;
    const uint64_t more = message->ready - next;
    return more > 0 && (message->ready == message->length || more >= message->segment_bytes);
  }
  bool asked_whole() const { return begun && next == message->length; }
};

class Outbox {
 public:
  Outbox(uint32_t member, uint32_t view) : member_(member), view_(view) {}

  // `charged` to the peer until it is sent.
  void Control(Header header, std::string text = "", size_t charged = 0);
  Header HeaderOf(FrameType type, const Flow& flow) const;
  void Queue(Outbound& out);  // if there is more of it to send
  // It won't be sent further. True: the link still reads its memory (Mesh::Keep).
  bool Remove(Outbound& out);
  void Cleared(Flow& flow);
  void Credit(uint64_t bytes);
  void Drop();  // the peer is lost

  // Segments of at most so many bytes, whatever their messages allow.
  void Limit(uint32_t segment_bytes) { most_ = segment_bytes; }
  bool Next(Outgoing& next);
  size_t OnSent(const Header& header);  // what is charged no longer

  uint64_t eager_left() const { return eager_left_; }

 private:
  struct Text {
    Header header;
    std::string text;
    size_t charged = 0;
  };
  struct InFlight {
    Outbound* out = nullptr;  // nullptr: a control frame, or a message that was removed
    std::unique_ptr<Text> control;
  };

  void Link(Outbound& out);
  void Unlink(Outbound& out);
  void Park(Outbound& out);
  template <typename Condition>
  void Unpark(Condition condition);

  const uint32_t member_, view_;  // of ours, in every header
  std::deque<std::unique_ptr<Text>> control_;
  Outbound *first_ = nullptr, *last_ = nullptr;
  std::vector<Outbound*> parked_;
  std::deque<InFlight> in_flight_;
  uint64_t eager_left_ = kEagerBytes;
  uint32_t most_ = kMaxPayload;
  uint64_t orders_ = 0;
};

}  // namespace byteps_like
