// What the payload of a STATE asks of a key, and bounds of what it brings. Mirrored by byteps_like/wire/saving.py;
// docs/reference/protocol.md, "Checkpoints", has the layouts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps_like {

inline constexpr size_t kMaxWord = 1024;           // bytes that a rank says in a CUT
inline constexpr uint32_t kNoWord = 0xFFFFFFFF;    // in place of its length: that rank has left
inline constexpr uint32_t kMaxSaved = 512u << 10;  // bytes of a value, of a state or of rows in a STATE

// The first byte of a STATE.
enum class StateRequest : uint8_t {
  kHeads = 1,      // of some keys: version, bytes of state, clocks
  kRead = 2,       // some bytes of a value or of its state, whatever the policy
  kRows = 3,       // rows of a table from a place on
  kClear = 4,      // a restoration of the key begins; what another one has brought is dropped
  kWrite = 5,      // some bytes that are to be its value or state
  kWriteRows = 6,  // rows that it is to have
  kCommit = 7,     // what was brought is its content from here on, of that version
  kGiveUp = 8,     // the restoration of the key ends without it
  // Between two worlds of a job.
  kSetAside = 9,   // what some keys keep doesn't change any more, and is there in the next world, too; else as kHeads
  kTake = 10,      // some bytes that were set aside, here or at another shard, are to be its value or state
  kTakeRows = 11,  // the same of rows of some buckets, from a place on
  kLetGo = 12,     // what a shard has set aside in worlds before isn't wanted any more
};

// Of tables, as byteps_like/worker/tables.py shares out their rows.
inline constexpr uint32_t kBucketShift = 52;         // a row's bucket is in the bits of its id from here on
inline constexpr size_t kBucketMapBytes = 4096 / 8;  // a bit for each bucket

inline constexpr uint32_t kNoShard = 0xFFFFFFFF;
inline constexpr uint64_t kAllKeys = ~uint64_t{0};  // of what was set aside

enum class SavedPart : uint8_t { kValue = 0, kState = 1 };

}  // namespace byteps_like
