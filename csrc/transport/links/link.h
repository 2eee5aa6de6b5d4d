// A link: one authenticated peer connection that carries frames. Pull model: the link asks its handler for the next
// frame when it has room, so the next frame is decided at the last moment (priorities), nothing is queued twice, and
// preemption happens between segments.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "csrc/transport/loop/event_loop.h"
#include "csrc/transport/stream.h"
#include "csrc/wire/frame.h"

namespace byteps_like {

class Link;

// PlaceFor and Redirect may return this instead of a place: the link's own memory will do. The payload is then valid
// only during OnFrame. A stream link reads it into a scratch buffer of its own; a link that receives into slots leaves
// it there.
inline std::byte kAnywhereMark{};
inline constexpr std::byte* kAnywhere = &kAnywhereMark;

struct Outgoing {
  Header header;                       // payload_crc is filled in by the link
  const std::byte* payload = nullptr;  // header.length bytes; unchanged until OnSent (or OnClosed)
  size_t copied = 0;                   // bytes that took time though they don't go out
};

// Which frames an offer is about: RESULT by key, PUSH by key and parity of the round (an accumulator each), DATA by
// lane, call and tag. Both the offering and the sending end derive it from the header.
struct OfferId {
  FrameType type{};
  uint64_t key = 0;
  uint64_t which = 0;
  bool operator==(const OfferId&) const = default;
};
inline OfferId OfferIdOf(const Header& header) {
  if (header.type == FrameType::kPush) return {header.type, header.key, header.round & 1};
  if (header.type != FrameType::kData) return {header.type, header.key, 0};
  return {header.type, header.key, (uint64_t{header.round} << 32) | header.root};
}

// All calls come on the loop's thread. None may block. A handler may call Kick, Close and Redirect inside any of them;
// it may end the link's life inside OnClosed, but in no other call that the link makes.
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  // Where the payload of this frame goes: `header.length` bytes that stay valid until OnFrame, Redirect or OnClosed, or
  // kAnywhere. nullptr refuses the frame: the link closes with kCorrupt. Not called when length is 0. It is also called
  // for a frame whose payload has arrived already (in a slot, or at an offered place); if it names another place, the
  // link copies.
  virtual std::byte* PlaceFor(Link& link, const Header& header) = 0;
  // A complete frame, its checksum verified. `payload` is the place from PlaceFor (or Redirect), or the link's memory
  // if that was kAnywhere.
  virtual void OnFrame(Link& link, const Header& header, std::byte* payload) = 0;
  // The link has room: fill in the next frame, or return false (then Kick the link when there is one). Small frames are
  // asked for several at once (up to 16 and 64 KiB in all), so OnSent of one may come after NextFrame of later ones.
  virtual bool NextFrame(Link& link, Outgoing& next) = 0;
  // The payload of this frame was handed over completely and may change.
  virtual void OnSent(Link& link, const Header& header) = 0;
  // Answers Link::Withdraw: the peer no longer writes by that offer. Not called once the link is dead.
  virtual void OnWithdrawn(Link& /*link*/, const OfferId& /*what*/) {}
  // The link is dead (once; no call follows). kClosed after a goodbye of either side, kCorrupt, kPeerLost or kSystem
  // otherwise, or the status given to Close.
  virtual void OnClosed(Link& link, const Status& why) = 0;
};

struct LinkCounters {  // bytes that crossed the stream, headers included; read from any thread
  uint64_t frames_sent = 0, frames_received = 0, bytes_sent = 0, bytes_received = 0;
  uint64_t payload_sent = 0, payload_received = 0;
  uint64_t offers_sent = 0;     // Link::Offer: those that the peer was told of
  uint64_t payload_placed = 0;  // of payload_received: written by the peer where an offer said

  LinkCounters& operator+=(const LinkCounters& more) {
    frames_sent += more.frames_sent;
    frames_received += more.frames_received;
    bytes_sent += more.bytes_sent;
    bytes_received += more.bytes_received;
    payload_sent += more.payload_sent;
    payload_received += more.payload_received;
    offers_sent += more.offers_sent;
    payload_placed += more.payload_placed;
    return *this;
  }
};

class Link {
 public:
  virtual ~Link() = default;
  virtual void Start() = 0;  // on the loop's thread: frames may come from here on
  virtual void
  Kick() = 0;  // on the loop's thread: the handler has something to send; calls no handler inside, but soon
  // Moves the payload that is being received now (PlaceFor gave its place) elsewhere: copies the bytes that have come,
  // and continues there. False if no payload is under way. kAnywhere: to the link's own memory.
  virtual bool Redirect(std::byte* place) = 0;
  // On the loop's thread. A standing permission: the peer may write the payloads of frames of OfferIdOf(about), each
  // from place + header.offset on and none beyond `bytes`, as soon as it sends them and unseen by the handler, which
  // hears of each frame when it is whole. An offer for encoded PUSH or RESULT frames does not cover unencoded ones, and
  // vice versa (`about.flags`). It holds until another offer of the same id replaces it (nullptr: none) or the link
  // ends. The peer learns of a replacement in order with the frames that are sent after it. Nothing more is written
  // once Close has returned, or by the time OnClosed is called. The handler ensures that the peer has nothing left to
  // send to a place that is replaced.
  //
  // An offer of DATA is for one message: it ends with the frame that fills its last byte.
  //
  // True: the peer may write there. It is told only when that changes. False: it goes on as if nothing had been
  // offered, because the place is not in registered memory (csrc/transport/memory/registered_memory.h) or the link is a
  // stream.
  virtual bool Offer(const Header& /*about*/, std::byte* /*place*/, uint64_t /*bytes*/) { return false; }
  // Whether OnSent may come after the peer's answer to the frame: a device reports late that it was received.
  virtual bool hears_late() const { return false; }
  // Whether Offer is worth a try: the peer can write into memory by itself.
  virtual bool takes_offers() const { return false; }
  // On the loop's thread. Takes back an offer, some of whose frames may still come. True: the peer may write there
  // until OnWithdrawn, or until Close has returned or OnClosed is called. False: nothing is written there any more.
  virtual bool Withdraw(const OfferId& /*what*/) { return false; }
  // Copies the payloads of the frames it has asked for and not sent whole: their memory may change from here on. For
  // operations that end before their time; OnSent is still called.
  virtual void Keep() = 0;
  // On the loop's thread: Stream::KeepShort.
  virtual bool KeepShort(bool on) = 0;
  virtual size_t Filling(size_t segment) const { return segment; }  // Stream::Filling
  // On the loop's thread. OnClosed(why) follows from the loop, never inside this call; frames that were sent completely
  // still arrive. Nothing more is written into offered memory.
  virtual void Close(const Status& why) = 0;
  virtual LinkCounters counters() const = 0;
  virtual std::string peer() const = 0;
  virtual bool shares_memory() const = 0;
  virtual Status PassBuffer(const SharedBuffer& buffer) = 0;       // before the kRegion frame that announces it
  virtual Result<std::shared_ptr<SharedBuffer>> TakeBuffer() = 0;  // on the kRegion frame
};

// The transport that carries the link, "rdma", whatever is wrapped around it. Any thread.
std::string TransportOf(const Link& link);

// Frames over any stream: by the stream's own link if it brings one (Stream::BringLink), else as its bytes. The handler
// must outlive the link. The link is destroyed on the loop's thread, or when the loop does not run.
std::unique_ptr<Link> MakeLink(EventLoop& loop, std::unique_ptr<Stream> stream, LinkHandler& handler);

}  // namespace byteps_like
