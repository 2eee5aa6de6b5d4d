// Events for the timeline: fixed-size records in a ring per thread. When recording is off, a hook is one relaxed load;
// when it is on, a record costs about 60 ns. Recording never waits: a full ring drops the record and counts it.
//
//   if (Tracing()) Trace({.kind = TraceKind::kReady, .begin = TraceClock(), .key = key, .member = rank});
//
// Members are numbered as in the trace that is written: worker r is r, server s is kTraceServers + s.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"

namespace byteps_like {

enum class TraceKind : uint8_t {
  // Of a partition's round, at its worker; peer: the server. key, round, bytes, priority.
  kReady = 0,     // the framework has handed it over
  kQueued = 1,    // until its first frame goes out
  kSent = 2,      // from there until its last frame was handed to the link
  kReceived = 3,  // from the first bytes of the result until the last
  // Of the same at its server; peer: the worker.
  kArrived = 4,   // a worker's contribution is whole
  kSummed = 5,    // from the first frame of the first worker until the sum of all is complete
  kReturned = 6,  // from the first frame of the result to a worker until its last
  // Of a collective: key = lane, round = call.
  kCall = 7,  // from launch to end; text: its description, or detail - 1: the kind of a call in shared memory
  kStep = 8,  // from its first bytes to its last; detail: StepKind, or the phase of a call in shared memory
  kWait = 9,  // a thread was blocked; key: what for (a partition, or detail = 1: a lane)
  // Of a partition with a codec, at its worker. bytes: of the payload, or of its sum.
  kEncoded = 10,  // by a codec thread: what it took to make the payload, or the prelude
  kDecoded = 11,
  // Of a partition of a tensor on a GPU, at its worker: between the device and its mirror. Where it is encoded there,
  // kEncoded and kDecoded are beside them.
  kDown = 12,
  kUp = 13,
  // Of a store key, at its server; peer: the worker. key.
  kHeldUp = 14,   // it has waited; detail: Awaited (server/store/figures.h), round: the version in force after that,
                  // step: the rank that others have waited for, 0xFFFFFFFF: none
  kLeftOut = 15,  // its contribution number `round` was late or not finite; detail: Applied (csrc/wire/note.h)
};

inline constexpr uint32_t kTraceServers = 1000;
// Phases of a call in shared memory, as details of kStep after the values of StepKind.
inline constexpr uint8_t kTraceGather = 4, kTraceWork = 5;

struct TraceRecord {  // one cache line; its layout is known to byteps_like/timeline/merge.py
  TraceKind kind{};
  uint8_t detail = 0;
  uint16_t reserved = 0;
  uint32_t thread = 0;   // filled in
  int64_t begin = 0;     // nanoseconds of TraceClock
  int64_t duration = 0;  // nanoseconds
  uint64_t key = 0;      // of the partition, or the lane
  uint64_t bytes = 0;
  uint32_t round = 0;  // of the key, or the call
  int32_t priority = 0;
  uint32_t member = 0;
  uint32_t peer = 0;  // the other member
  uint32_t text = 0;  // TraceText; 0: none
  uint32_t step = 0;  // of a collective
};
static_assert(sizeof(TraceRecord) == 64);

namespace internal {
inline std::atomic<bool> tracing{false};
}

inline bool Tracing() { return internal::tracing.load(std::memory_order_relaxed); }

// CLOCK_MONOTONIC, as Python's time.monotonic_ns.
inline int64_t TraceNanoseconds(Deadline time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
inline int64_t TraceClock() { return TraceNanoseconds(Clock::now()); }

// Any thread. A thread's first record takes memory for its ring.
void Trace(TraceRecord record);
// The same from `begin` (0: not known, so now) until now.
void TraceSince(int64_t begin, TraceRecord record);
// A number that stands for `text` in records, the same each time; 0 once there are too many. Takes a lock.
uint32_t TraceText(std::string_view text);

// For whoever collects. Rings made from here on hold `records` each (rounded up to a power of two).
void StartTracing(size_t records);
void StopTracing();  // a thread that is in Trace now may still record; what lies in the rings stays there

struct Traced {
  std::vector<TraceRecord> records;  // in the order of each thread
  uint64_t lost = 0;                 // since tracing was first started
};
// The records since the last call. Any thread; calls run one at a time.
Traced DrainTrace();
// Texts `first`, first + 1, ...: that of number n is at n - first. Numbers begin at 1.
std::vector<std::string> TraceTexts(uint32_t first);

}  // namespace byteps_like
