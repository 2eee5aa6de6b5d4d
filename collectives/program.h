// A schedule for one rank, ready to run: steps over chunks of three buffers, and the steps that each must wait for.
// Made and checked in Python (byteps_like/collectives/schedules/schedule.py). Immutable; any number of runs share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/status.h"

namespace byteps_like {

enum class StepKind : uint8_t { kSend = 0, kReceive = 1, kReceiveReduce = 2, kCopy = 3 };
enum class BufferKind : uint8_t { kInput = 0, kOutput = 1, kScratch = 2 };

struct ChunkSpan {  // chunks [first, first + count) of a buffer, which must lie one behind the other if count > 1
  BufferKind buffer = BufferKind::kInput;
  uint32_t first = 0;
  uint32_t count = 0;
};

// send: source goes to peer. receive: target = received. receive_reduce: target = source op received.
// copy: target = source. Source and target have the same length. A step may begin when all earlier steps on the same
// bytes (read after write, write after read, write after write) are done up to those bytes: dependencies are by prefix,
// so a chunk is forwarded while it arrives. Steps that touch different bytes run in any order.
struct Step {
  StepKind kind{};
  uint32_t peer = 0;  // group rank
  uint32_t tag = 0;   // matches a send with its receive: unique per (sender, receiver) within the schedule
  ChunkSpan source, target;
  bool final = false;  // after this receive_reduce the target holds every contribution: an average is divided here
};

enum class Side : uint8_t { kSource = 0, kTarget = 1 };

// A step must wait for an earlier one on the same bytes: `theirs` of that step overlaps `ours`, and one of the two is a
// target.
struct Dependency {
  uint32_t step = 0;
  Side theirs{}, ours{};
};

struct Program {
  uint32_t rank = 0, size = 1;  // in the group
  uint32_t input_chunks = 0, output_chunks = 0, scratch_chunks = 0;
  std::vector<Step> steps;
  std::vector<std::vector<Dependency>> after;  // per step, on earlier steps; filled by Compile

  // Checks what can be checked without sizes and works out `after`. With `alias` >= 0 the input is chunks [alias, alias
  // + input_chunks) of the output (in place): no step refers to the input afterwards, and copies onto themselves are
  // dropped. kInvalid names the faulty step.
  static Result<std::shared_ptr<const Program>> Compile(Program program, int32_t alias);
};

// Where the chunks of one run lie: byte offset from the buffer's address, and bytes. Offsets may be anything, also
// negative, but for spans of several chunks.
struct Chunk {
  int64_t offset = 0;
  uint64_t bytes = 0;
};

}  // namespace byteps_like
