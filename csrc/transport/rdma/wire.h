// The messages of an rdma connection. Both ends are little-endian.
//
// A message is one work request that the receiver sees complete: an eager one (SEND with immediate: an envelope and up
// to 4 KiB) or a piece of a payload (RDMA WRITE with immediate into a landing slot, or to a place that was offered).
// The immediate is the message's number, which puts those of several queue pairs in order.
//
// Nothing is sent that has no place to land. The receiver keeps kDepth receives posted on every queue pair. A sender is
// at most kWindow messages ahead of those that it knows to be consumed; the other receives are for kCredit and kFin,
// which must never wait. (An end sends a credit per half a window or half the slots, so it has at most 5 of these under
// way.) Slots are used in turn, at most kSlots ahead of those that the receiver has freed. Both counts come back in
// every envelope.
//
// Until the handshake, by eager messages, is over, a queue pair refuses all writes of its peer, so a guessed key is
// useless. A link then lets its peer write and sends kOpen; the other end writes nothing before that.
#pragma once

#include <bit>
#include <cstdint>

#include "csrc/transport/rdma/cookie.h"
#include "csrc/wire/frame.h"

namespace byteps_like::rdma {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kDepth = 64;   // receives posted, and messages outstanding: a power of two
inline constexpr uint32_t kWindow = 56;  // messages ahead of the receiver
inline constexpr uint32_t kSlots = 8;    // for pieces of payload, per connection
inline constexpr uint32_t kSlotBytes = 128u << 10;
inline constexpr uint32_t kEagerBytes = 4096;  // one buffer of an eager message; the message lies at its end, so that
inline constexpr uint32_t kEagerSkip = 48;     // the payload behind envelope and header is aligned to 64 bytes
inline constexpr uint32_t kMessageBytes = kEagerBytes - kEagerSkip;

enum class Kind : uint8_t {
  kBytes = 1,   // of a stream
  kFin = 2,     // of a stream: no more follow
  kCredit = 3,  // only the fields of every envelope
  kFrame = 4,   // frames, PackedSize each: header and payload; if `pieces`, only the header of the last one
  kOpen = 5,    // a link's first: where its landing slots are, struct PlaceOffer
  kOffer = 6,   // a place where payloads may be written: struct PlaceOffer
  // An offer is taken back, named by its id and generation, and the answer: the pieces that went by it are before this.
  kWithdraw = 7,
  kWithdrawn = 8,
};

struct Envelope {
  Kind kind{};
  uint8_t pieces = 0;  // kFrame: the payload comes as pieces
  uint16_t reserved = 0;
  uint32_t consumed = 0;    // messages of the other direction, modulo 2^32
  uint32_t freed = 0;       // slots, likewise
  uint32_t generation = 0;  // kFrame: of the offer that the pieces go to; 0: they go to slots
};
static_assert(sizeof(Envelope) == 16 && kEagerSkip + sizeof(Envelope) + kHeaderBytes == 128);

inline constexpr size_t kMostOffers = 1u << 17;  // that a peer may make: some 14 MiB to remember

inline constexpr uint32_t kMaxQueuePairs = 8;  // of one connection, all rails together

// Content of kOpen and later notices. bytes 0: the offer no longer exists.
struct PlaceOffer {
  FrameType type{};
  uint8_t encoded = 0;
  uint16_t reserved = 0;
  uint32_t generation = 0;  // names this offer in envelopes; never 0
  uint64_t key = 0;
  uint64_t which = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t keys[kMaxQueuePairs] = {};  // for the device of each queue pair
};
static_assert(sizeof(PlaceOffer) == 72);

inline constexpr uint32_t kContentBytes = kMessageBytes - sizeof(Envelope);  // of an eager message
inline constexpr uint32_t kEagerPayload = kContentBytes - kHeaderBytes;      // of a frame that fits into one

// The room that a frame takes in an eager message, padded so that the next frame's header and payload are aligned
// again.
constexpr uint32_t PackedSize(uint32_t length) { return (static_cast<uint32_t>(kHeaderBytes) + length + 63) & ~63u; }
static_assert(PackedSize(kEagerPayload) == kContentBytes);

// Private data of the connection request and of its answer, once per queue pair.
struct Greeting {
  uint32_t magic = 0x524C5042;  // "BPLR"
  uint16_t layout = 3;          // of messages
  uint8_t index = 0;            // of the queue pair
  uint8_t count = 0;            // of queue pairs of the connection
  uint64_t connection[2] = {};  // drawn by the connecting end: which requests belong together
  uint32_t mtu = 0;             // bytes; at most as many as the sender's side carries
  uint32_t reserved = 0;
  Cookie cookie{};  // of the listener, which refuses the first request without one, and says it then
};
static_assert(sizeof(Greeting) == 48);  // at most 56 bytes fit

}  // namespace byteps_like::rdma
