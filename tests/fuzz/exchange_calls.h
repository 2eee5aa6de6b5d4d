// What all ranks do in the calls of the fuzzer of exchanges, the messages between them, and a slow interpreter that
// says what a call comes to.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/exchange/exchange.h"
#include "collectives/plan.h"
#include "tests/fuzz/fuzzing.h"
#include "tests/native/collectives/schedules.h"

namespace byteps_like::fuzzing {

inline constexpr uint64_t kLanes = 2;
inline constexpr uint64_t kLastLane = 1u << 20;  // of the good call at the end: out of reach of floods that count lanes
inline constexpr uint32_t kCounts[] = {0, 2, 33, 1000, 20000};  // elements of a call

// What all ranks do in a call follows from its number and lane, so that peers can be ahead.
struct Shape {
  Program (*make)(uint32_t rank, uint32_t size) = nullptr;
  std::vector<uint32_t> group;
  uint32_t count = 0;
  bool one_chunk = false, in_place = false;
};

inline Shape ShapeOf(const CallId& id) {
  using namespace testing;  // NOLINT
  const uint32_t count = kCounts[(id.call * 5 + id.lane) % std::size(kCounts)];
  const std::vector<uint32_t> groups[] = {{0, 1, 2}, {1, 0, 2}, {2, 1, 0}};
  const std::vector<uint32_t>& group = groups[id.call / 2 % std::size(groups)];
  if (id.lane == kLastLane) return {RingAllReduce, group, 1000};
  switch ((id.lane + id.call) % 6) {
    case 0:
      return {RingAllReduce, group, count};
    case 1:
      return {RingAllReduce, group, count, false, true};
    case 2:
      return {ChainBroadcast, group, count, true};
    case 3:
      return {AllToAll, group, count};
    case 4:
      return {Barrier, group, 0, true};
    default:
      return {DoublingAllReduce, {0, 1 + id.call / 6 % 2}, count, true};
  }
}

inline std::string WordsOf(const CallId& id) { return "call " + std::to_string(id.call); }

inline std::shared_ptr<const Plan> PlanOf(const Shape& shape) {
  const auto size = static_cast<uint32_t>(shape.group.size());
  const auto rank = static_cast<uint32_t>(std::find(shape.group.begin(), shape.group.end(), 0) - shape.group.begin());
  Program program = shape.make(rank, size);
  const auto chunks = testing::Lay(testing::Cut(shape.count, shape.one_chunk ? 1 : size), sizeof(int32_t));
  const ChunkTables tables{program.input_chunks == 0 ? std::vector<Chunk>() : chunks, chunks,
                           program.scratch_chunks == 0 ? std::vector<Chunk>() : chunks};
  auto compiled = Program::Compile(std::move(program), shape.in_place ? 0 : -1);
  Require(compiled.ok());
  auto plan = Plan::Make(*compiled, shape.group, tables);
  Require(plan.ok());
  return *plan;
}

// A message between rank 0 and a peer. `tag` is the line of a point to point message.
using MessageName = std::tuple<uint32_t, uint64_t, uint32_t, uint32_t>;  // peer, lane, call, tag

struct Message {  // as far as it was said
  Buffer bytes;
  uint32_t tag = 0;
  uint64_t length = 0;
  bool begun = false;
  bool claimed = false;
};
using Messages = std::map<MessageName, Message>;
struct Said {
  Messages sent, heard;  // by rank 0
};

using CallNumbers = std::map<uint64_t, uint32_t>;  // the next call of each lane

// Step by step, in order: what a run comes to.
class Interpreter {
 public:
  Interpreter(const Plan& plan, const Buffer& input, const Buffer& output, const Messages& heard, const CallId& id)
      : buffers_{input, output, Buffer(plan.scratch_bytes)}, heard_(heard), id_(id) {
    for (const PlanStep& step : plan.steps) Do(step);
  }
  const Buffer& output() const { return buffers_[1]; }
  const Messages& sent() const { return sent_; }

 private:
  std::byte* At(BufferKind buffer, int64_t offset) { return buffers_[static_cast<size_t>(buffer)].data() + offset; }

  void Do(const PlanStep& step) {
    const MessageName name{step.peer, id_.lane, id_.call, step.tag};
    const std::byte* from = At(step.source_buffer, step.source);
    if (step.kind == StepKind::kSend) {
      Message& message = sent_[name];
      message.bytes.assign(from, from + step.length);
      return;
    }
    if (step.kind != StepKind::kCopy) {
      const auto said = heard_.find(name);
      Require(said != heard_.end() && said->second.begun && said->second.bytes.size() >= step.length);
      if (step.kind == StepKind::kReceiveReduce) return Add(step, said->second.bytes);
      from = said->second.bytes.data();
    }
    if (step.length > 0) std::memmove(At(step.target_buffer, step.target), from, step.length);
  }

  void Add(const PlanStep& step, const Buffer& theirs) {
    for (uint64_t at = 0; at < step.length; at += sizeof(uint32_t)) {
      uint32_t a, b;
      std::memcpy(&a, At(step.source_buffer, step.source) + at, sizeof(a));
      std::memcpy(&b, theirs.data() + at, sizeof(b));
      a += b;
      std::memcpy(At(step.target_buffer, step.target) + at, &a, sizeof(a));
    }
  }

  std::array<Buffer, 3> buffers_;
  const Messages& heard_;
  const CallId id_;
  Messages sent_;
};

// What point to point messages carry: words of a send's own number and their place.
inline uint32_t WordOf(uint32_t id, uint64_t index) { return id << 20 | static_cast<uint32_t>(index); }
inline void FillWith(uint32_t id, std::byte* to, size_t bytes) {
  for (size_t at = 0; at < bytes; ++at) to[at] = std::byte(WordOf(id, at / 4) >> at % 4 * 8);
}
// Whatever a point to point message carries, it is one send's, from the beginning on.
inline void CheckPattern(const Header& header, const std::byte* payload) {
  if (header.length < 4 || header.offset % 4 != 0) return;
  uint32_t first;
  std::memcpy(&first, payload, sizeof(first));
  for (uint32_t at = 0; at < header.length; ++at)
    Require(payload[at] == std::byte(WordOf(first >> 20, (header.offset + at) / 4) >> at % 4 * 8));
}

}  // namespace byteps_like::fuzzing
