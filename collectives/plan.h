// A program bound to the sizes of one kind of call: where each step's bytes lie and how far it may run ahead of others.
// Checked once, immutable, shared by any number of runs: a caller keeps it for the next call of the same shape.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/program.h"

namespace byteps_like {

// A step may be done up to byte `progress of the earlier step + lead`, and without bound once that step is done.
struct PlanEdge {
  uint32_t step = 0;  // the earlier one
  int64_t lead = 0;
};

struct PlanStep {
  StepKind kind{};
  bool final = false;
  bool theirs_first = false;  // the received bytes come from a lower group rank: the left operand of a reduction
  BufferKind source_buffer{}, target_buffer{};
  uint32_t peer = 0;  // world rank
  uint32_t tag = 0;
  uint32_t message = 0;                     // counts the sends, and the receives, of a plan
  int64_t source = 0, target = 0;           // byte offset from the buffer's address
  uint64_t length = 0;                      // bytes
  uint32_t after_begin = 0, after_end = 0;  // its edges in Plan::after
  uint32_t wakes_begin = 0, wakes_end = 0;  // later steps that may wait for it, in Plan::wakes
};

// Where the chunks of each buffer lie.
struct ChunkTables {
  std::vector<Chunk> input, output, scratch;
};

struct Plan {
  std::shared_ptr<const Program> program;
  std::vector<uint32_t> ranks;  // of the group: group rank -> world rank
  std::vector<PlanStep> steps;
  std::vector<PlanEdge> after;
  std::vector<uint32_t> wakes;
  uint32_t sends = 0, receives = 0;
  uint64_t scratch_bytes = 0;
  uint64_t reduced_lengths = 0;  // all lengths of receive_reduce steps, or'ed: elements must divide it
  bool reduces = false;
  bool needs_input = false, needs_output = false;  // some bytes of it are touched

  // kInvalid, naming the step or chunk: tables of another size than the program's, spans of several chunks that don't
  // lie one behind the other, a source and a target of different lengths, scratch before its buffer.
  static Result<std::shared_ptr<const Plan>> Make(std::shared_ptr<const Program> program, std::vector<uint32_t> ranks,
                                                  const ChunkTables& chunks);
};

}  // namespace byteps_like
