// The note before the payload of a contribution to a store key: what a policy, a combination and an update must know of
// it. 32 bytes, little-endian, counted in the frame's `length` and not in `total`. See docs/reference/protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"

namespace byteps_like {

inline constexpr size_t kNoteBytes = 32;

enum NoteBit : uint32_t {
  kLastBlock = 1,  // nothing follows of what its source has set out to bring
  kPartial = 2,    // it is a part of that, and others follow
  kInitial = 4,    // it is the key's first value, not a contribution
};

struct Note {
  uint32_t base = 0;                                     // the version that it was computed on
  float weight = 1;                                      // above 0
  float lr = std::numeric_limits<float>::quiet_NaN();    // at least 0; NaN: the update's own
  float loss = std::numeric_limits<float>::quiet_NaN();  // NaN: not told
  float time = 0;                                        // seconds that it took to compute, at least 0
  uint32_t function = 0;                                 // of its spec, what is done instead of the update; 0: that
  uint32_t source = 0;                                   // 0: the sender itself; else the portion of work, from 1
  uint32_t bits = kLastBlock;                            // of NoteBit
};

// What became of a contribution, as its source is told.
enum class Applied : uint8_t { kCounted = 0, kLate = 1, kHeld = 2, kNotFinite = 3 };

// A set of ranks as APPLIED carries it: bit r of byte r / 8 is rank r. Of none no byte; bytes of zeros may be missing.
std::string EncodeRanks(std::span<const uint32_t> ranks);
std::vector<uint32_t> DecodeRanks(std::span<const std::byte> bits);  // ascending

void EncodeNote(const Note& note, std::span<std::byte, kNoteBytes> out);

// kCorrupt names the field that is out of its range.
Result<Note> DecodeNote(std::span<const std::byte, kNoteBytes> in);

}  // namespace byteps_like
