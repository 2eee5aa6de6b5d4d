// The layout of the memory that the ranks of a host share, and which rank writes each part.
//
//   header   cells: one per rank: its process, its bell, whether it is gone
//   lanes    one word per group, together: looked through when a group is made
//   slots    one per group: states of calls, and per member: words, posts
//   stages   per group and member: memory for what is private
//
// All of it begins as zeros. Everything of a member is written by that member alone. Only single words may be written
// by any rank: the lane of a slot (under the header's lock, which can be taken from a dead owner), the failure and the
// work of a call, whether a rank is gone.
//
// A member's words only grow. Each is (call << 32 | progress within the call); a member that has left a call for good
// holds (call + 1) << 32. No member reuses memory that others read in call c until their words have passed c.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "collectives/host/host.h"

namespace byteps_like {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

inline constexpr uint32_t kHostRing = 8;     // calls of a group that its members may be apart
inline constexpr uint32_t kHostBuffers = 4;  // stage buffers of a member
inline constexpr size_t kHostText = 480;
inline constexpr uint32_t kReadAll = 0x7FFFFFFF;  // progress: has read all that it will read in this call

constexpr uint64_t PackWord(uint64_t call, uint64_t progress) { return call << 32 | progress; }
constexpr uint64_t CallOf(uint64_t word) { return word >> 32; }

struct HostSection {
  uint32_t region, unused;
  uint64_t offset, bytes;
};

// A member's contribution to a call. Valid once its `in` word has reached the call.
struct alignas(64) HostPost {
  uint64_t call;
  uint64_t fingerprint;  // equal on all members, or they disagree
  uint64_t bytes;
  uint32_t root;
  uint8_t kind, dtype, op;
  uint8_t direct;  // kDirectInput | kDirectOutput: lies in regions
  uint32_t input_region, output_region;
  uint64_t input_offset, output_offset;
  // Why it fails the call; written before the call's failure word.
  alignas(64) uint32_t failure_code;
  char failure[kHostText];
  // Followed by a HostSection per member, where the kind has sections.
};
inline constexpr uint8_t kDirectInput = 1, kDirectOutput = 2;

// A failure as another process has written it, which is not trusted to be one.
inline Status FailureIn(uint32_t code, const char (&text)[kHostText]) {
  return Status(CodeFrom(code), std::string(text, ::strnlen(text, kHostText)));
}

struct HostMember {
  alignas(64) std::atomic<uint64_t> in;            // 1 + pieces staged
  alignas(64) std::atomic<uint64_t> mid;           // pieces reduced
  alignas(64) std::atomic<uint64_t> out;           // pieces read
  alignas(64) std::atomic<uint64_t> taken;         // parts of its share of a direct reduction that some rank has begun
  alignas(64) std::atomic<uint32_t> joined, left;  // how often
};

struct HostSlot {
  alignas(64) std::atomic<uint64_t> members;  // hash of its members
  std::atomic<uint64_t> failed[kHostRing];    // call << 32 | 1 + the member that says why
  struct alignas(64) Work {
    std::atomic<uint64_t> finished;  // parts of a direct reduction
  } work[kHostRing];
};

struct HostCell {
  alignas(64) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<int32_t> pid;
  std::atomic<uint64_t> pid_space;  // process ids mean something only within one namespace
  std::atomic<uint32_t> gone;       // 1: being written, 2: as said below
  uint32_t code;
  char text[kHostText];
};

struct HostHeader {
  alignas(64) std::atomic<uint32_t> losses;  // how many ranks are gone
  alignas(64) std::atomic<uint32_t> lock;    // 1 + rank that changes the slots' lanes
};

class HostLayout {
 public:
  HostLayout(std::byte* base, uint32_t ranks, uint32_t groups);

  size_t bytes() const { return stages_ + groups_ * ranks_ * stage_bytes(); }
  uint32_t groups() const { return groups_; }
  HostHeader& header() const { return *reinterpret_cast<HostHeader*>(base_); }
  HostCell& cell(uint32_t rank) const;
  std::atomic<uint64_t>& lane(uint32_t slot) const {  // 0: the slot is free
    return reinterpret_cast<std::atomic<uint64_t>*>(base_ + lanes_)[slot];
  }
  HostSlot& slot(uint32_t slot) const { return *reinterpret_cast<HostSlot*>(base_ + slots_ + slot * slot_bytes_); }
  HostMember& member(uint32_t slot, uint32_t member) const;
  HostPost& post(uint32_t slot, uint32_t member, uint64_t call) const;
  static HostSection* sections(HostPost& post) { return reinterpret_cast<HostSection*>(&post + 1); }
  static const HostSection* sections(const HostPost& post) { return reinterpret_cast<const HostSection*>(&post + 1); }
  // Source buffers, then result buffers of result_bytes.
  std::byte* stage(uint32_t slot, uint32_t member) const;
  size_t piece_bytes() const { return piece_bytes_; }
  size_t stage_bytes() const { return 2 * kHostBuffers * piece_bytes_; }

 private:
  std::byte* base_;
  uint32_t ranks_, groups_;
  size_t piece_bytes_, post_bytes_, member_bytes_, slot_bytes_, lanes_, slots_, stages_;
};

}  // namespace byteps_like
