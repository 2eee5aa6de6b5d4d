// The frame: a 64-byte little-endian header and `length` bytes of payload. See docs/reference/protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"

namespace byteps_like {

inline constexpr uint32_t kFrameMagic = 0x324C5042;  // "BPL2"
inline constexpr size_t kHeaderBytes = 64;
inline constexpr uint32_t kMaxPayload = 16u << 20;     // what one frame may carry; bounded before memory is taken
inline constexpr uint32_t kMaxPartition = 1u << 30;    // what one key may hold
inline constexpr uint32_t kMaxText = 64u << 10;        // of an ERROR or WARNING
inline constexpr uint32_t kMaxRanks = 8u << 10;        // bytes of the ranks of an APPLIED
inline constexpr uint32_t kMaxState = 1u << 20;        // bytes of a CUT or STATE
inline constexpr uint64_t kMaxOffset = 1ull << 48;     // a region's size, or a place in it
inline constexpr size_t kDefaultSegment = 128u << 10;  // one wire write: what a higher priority waits for at most

// TCP sends at most 64 KiB at once, headers included and in whole packets, which leaves more than 61,504 bytes at any
// size of packets that is in use. What is beyond takes one more pass through the kernel, however short it is.
inline constexpr size_t kSendBytes = 60u << 10;

// The longest segment, up to this, whose frame fills the sends that it needs.
constexpr size_t FillingSends(size_t segment) {
  return segment < kSendBytes ? segment : segment / kSendBytes * kSendBytes;
}

enum class FrameType : uint8_t {
  kPush = 1,     // worker -> server: a segment of a contribution (or, by reference, where all of it lies)
  kResult = 2,   // server -> worker: a segment of the finished reduction (or, by reference: it lies in place)
  kResume = 3,   // worker -> server, after a new link: offset = result bytes already landed for (key, round)
  kResumed = 4,  // server -> worker: offset = contribution bytes already counted for (key, round)
  kRegion = 5,   // worker -> server, shm/inproc: region `aux` of `offset` bytes is now mapped by the peer
  kError = 6,    // either way: the job has failed; aux = Code, payload = UTF-8 text
  kWarning = 7,  // server -> worker: a wait is slow; payload = UTF-8 text
  kGoodbye = 8,  // either way: the link will be closed in order; aux = Code
  // Between workers (collectives/exchange/exchange.h). key = lane, round = call, root = tag.
  kLaunch = 9,   // the sender has begun the call; payload = its description; aux = 1: asks for a kClear
  kData = 10,    // a segment of a message: `offset` in it, which is not bounded by `total`
  kClear = 11,   // the call has begun here: its messages may be sent whole
  kCredit = 12,  // `offset` bytes of what was stashed have been taken
  kAbort = 13,   // the call has failed; aux = Code, payload = UTF-8 text
  kHurry = 14,   // messages in a hurry share the line with what comes by this link: it should be paced for a second
  kForget = 15,  // worker -> server: this rank is done with `key` for ever; when all are, the server frees it
  kCodec = 16,   // worker -> server: codec `aux` of this link; payload = UTF-8 text, its canonical spec
  // Of store keys, whose values servers keep (server/store). `round` is a source's clock.
  kSpec = 17,     // worker -> server: `key` is a store key of `total` bytes and spec `aux` of this link, whose text is
                  // the payload at its first use; `round` = 0, or see kChanges
  kOpened = 18,   // server -> worker: it has version `offset`, and the sender's next contribution is number `round`;
                  // aux = Opened
  kApplied = 19,  // server -> worker: what became of contribution `round`: aux = Applied, offset = version; payload =
                  // EncodeRanks (csrc/wire/note.h) of all whose contributions are in it, unless it is alone there
  kPull = 20,     // worker -> server: wants bytes `offset` to `total` of a version of at least `aux` other than `root`
  kValue = 21,    // server -> worker: a segment of version `root`; with `offset` = `total`: the reader has that version
  // Of tables, whose keys have rows by id instead of a dense value.
  kKeys = 22,    // worker -> server: a segment of list `aux` of this link: `total` / 8 ids, whose CRC32C is `root`
  kRows = 23,    // worker -> server: a segment of a contribution, as kPush: a row for each id of list `aux`, CRC `root`
  kFetch = 24,   // worker -> server: wants rows of list `aux`, CRC `root`, or of a range, as request number `total`
  kNack = 25,    // server -> worker: this link has no list `aux` of that CRC: `round` of a contribution (`total` 1), or
                 // request `offset` (`total` 2)
  kClock = 26,   // worker -> server: contribution `round` brings nothing but its note
  kCutoff = 27,  // server -> worker: version `offset` + 1 is about to be made without contribution `round` of this
                 // rank, of which it should send the blocks that it has finished
  // Of what servers save and restore (csrc/wire/saving.h): request `round` of this rank to this shard, which is
  // answered by a frame of the same type. aux of an answer = Code.
  kCut = 28,    // all ranks meet behind their contributions to some keys; a word of each, for all
  kCall = 29,   // worker -> server: a function is to run on what it keeps of some tensors (csrc/wire/call.h), the
                // `round`th that this rank asks this shard for; aux = partitions of each here, total = of each in
                // all. server -> worker: what has come of it; aux = Code
  kState = 31,  // what a key keeps is read, or replaced
  // Of jobs that go on without a worker that is gone.
  kContributors =
      32,       // server -> worker: the first `offset` of `total` bytes of rank `root` are in round `round` of
                // `key`; or, with `total` = 0: nothing of it is in rounds of which this isn't said
                // To a server: of a result that is given to rank `aux`. To a worker, aux = 1: of one that it takes
  kOwner = 34,  // worker -> aggregator: sums of `key` go on to shard `aux` of server `root`
  // Of jobs that go on without a server that is gone, whose keys shards of others adopt.
  kAdopt = 35,    // worker -> server: the next round of `key` is `round` on this rank; aux: of Adopting
  kAdopted = 36,  // server -> worker: as all ranks have said so, it goes on with `round`; aux = Adopted
  kTake =
      37,  // worker -> server: wants the result of `round` from byte `offset` on. server -> worker: rank `root` does
  kGive = 38,  // worker -> server: a segment of that for rank `root`; server -> worker: to that rank
  // Between servers, of store keys that outlive one (server/store/chain).
  kCopy = 39,    // number `round` of what makes and keeps the copy of `key`: aux = CopyPart
  kCopied = 40,  // all up to number `round` of that is in the copy, and in those behind it
};
inline constexpr uint8_t kFrameTypeCount = 41;
inline constexpr uint8_t kUnassigned[] = {30, 33};  // below that

enum FrameFlag : uint8_t {
  kByReference = 1,  // the payload lies in shared memory: region `aux`, from byte `offset`, `total` bytes
  kMovable = 2,      // PUSH: the rank knows where the tensor goes after this round; RESULT: all ranks do, so it moves
  kEncoded = 4,      // PUSH, RESULT, RESUME: bytes of a payload by codec `aux`; offset, length and total count those
  kAbsent = 8,       // PUSH: the rank brings nothing to this round, and wants no result; RESULT: it is over
  kNoted = 16,       // PUSH, ROWS, the first frame: the payload begins with a note (csrc/wire/note.h), outside `total`
  kSilent = 32,      // PUSH, ROWS: no RESULT is wanted
};

// `round` of a SPEC, if it is not 0: the key's policy changes; the rank knows the key from a server that is gone; the
// first value, which this rank sets, is zeros.
inline constexpr uint32_t kChanges = 1;
inline constexpr uint32_t kMoved = 2;
inline constexpr uint32_t kIsZeros = 3;

inline constexpr uint32_t kMostLists = 1024;      // of ids, of a table and a link
inline constexpr uint32_t kRange = 0xFFFFFFFF;    // in place of a list's number: ids from one to another
inline constexpr uint32_t kUnknown = 0xFFFFFFFF;  // version of a row that a reader doesn't have

// Of an ADOPT: the rank has the result of the round before; it waits for that round; it is absent from its rounds.
enum Adopting : uint32_t { kHoldsResult = 1, kWaits = 2, kBroughtNothing = 4 };
// How the round of an ADOPTED comes about: by contributions, or there is a result, which another rank has.
enum Adopted : uint32_t { kIsSummed = 0, kIsTaken = 1 };

// What a COPY brings: bytes from place `offset` on of what the text before them is about, or such a text, which
// `offset` bytes follow: the key's value and all that is known of it, or what has become of it since. Or the key is no
// more; or nobody hears from here on of what isn't in the copy; or it is set aside for the next world.
enum CopyPart : uint32_t {
  kCopyBytes = 0,
  kCopyBegins = 1,
  kCopyGoesOn = 2,
  kCopyEnds = 3,
  kCopyHolds = 4,
  kCopyStays = 5
};

// What a NACK refuses.
enum Nacked : uint32_t { kNackedRows = 1, kNackedFetch = 2 };

// How a store key is, in the answer to a SPEC.
enum Opened : uint32_t {
  kHasValue = 0,
  kLacksValue = 1,  // which this rank is to set
  kChanged = 2,     // all ranks have asked for the policy that is in force now
};

struct Header {
  FrameType type{};
  DType dtype{};
  Op op{};
  uint8_t flags = 0;
  uint32_t view = 0;     // number of the membership; a stale frame is dropped
  uint32_t member = 0;   // number of the sender (push side) or of the addressee (result side)
  uint64_t key = 0;      // of the partition
  uint32_t round = 0;    // version of the key, from 0, wraps
  int32_t priority = 0;  // higher first
  uint64_t offset = 0;   // bytes from the start of the partition (by reference: of the region; kRegion: its size)
  uint32_t length = 0;   // bytes of payload behind this header
  uint32_t total = 0;    // bytes of the whole partition
  uint32_t payload_crc = 0;
  uint32_t aux = 0;   // region id (by reference, kRegion), codec (encoded, kCodec), Code (kError, kGoodbye), or, in
                      // another PUSH of an aggregator, how many of its ranks bring nothing
  uint32_t root = 0;  // rank whose bytes a kBroadcast hands out
  uint32_t rank = 0;  // of `member` in the receiver's world (its seat, if that is no worker), which fills it in: not on
                      // the wire
};

// Writes 64 bytes, the checksum of the first 60 last.
void EncodeHeader(const Header& header, std::span<std::byte, kHeaderBytes> out);

// Checks magic, checksum, codes and bounds; kCorrupt names the field that is wrong. What holds afterwards:
//   length <= kMaxPayload, total <= kMaxPartition, offset <= kMaxOffset
//   PUSH, RESULT, VALUE, GIVE offset + length <= total; by reference instead: length == 0; encoded: not by reference;
//                             absent: neither of both, offset == length == 0; noted: offset == 0, length >= kNoteBytes,
//                             which are not counted
//   ROWS                      as PUSH, and no flags but noted and silent; aux < kMostLists
//   KEYS                      offset + length <= total, all three of whole ids; aux < kMostLists
//   FETCH                     aux < kMostLists, length a multiple of 8; or aux == kRange, length == 16
//   PULL                      length == 0, offset <= total
//   RESUME, RESUMED           length == 0, offset <= total; encoded RESUME: offset <= kMaxPartition, since its result
//                             may be larger than the payload
//   CONTRIBUTORS              length == 0, offset <= total
//   REGION, GOODBYE, FORGET, OPENED, NACK, OWNER, ADOPT, ADOPTED, TAKE, COPIED   length == 0
//   APPLIED                   length <= kMaxRanks
//   ERROR, WARNING, CODEC     length <= kMaxText; offset and total mean nothing
//   SPEC, CALL                length <= kMaxText
//   CUT, STATE                length <= kMaxState
Result<Header> DecodeHeader(std::span<const std::byte, kHeaderBytes> in);

}  // namespace byteps_like
