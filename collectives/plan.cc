#include "collectives/plan.h"

#include <algorithm>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

constexpr uint64_t kMostBytes = 1ull << 48;  // of one buffer: the limit of addresses
constexpr int64_t kFarthest = int64_t{1} << 56;

struct Extent {
  int64_t offset = 0;
  uint64_t bytes = 0;
};

class Planner {
 public:
  Planner(const ChunkTables& chunks, Plan& plan) : chunks_(chunks), program_(*plan.program), plan_(plan) {}

  Status Run() {
    if (Status status = CheckTables(); !status.ok()) return status;
    plan_.steps.reserve(program_.steps.size());
    for (uint32_t i = 0; i < program_.steps.size(); ++i) {
      if (Status status = AddStep(program_.steps[i]); !status.ok()) {
        return Status(status.code(), "step " + std::to_string(i) + ": " + status.message());
      }
    }
    LinkSteps();
    return Status();
  }

 private:
  const std::vector<Chunk>& TableOf(BufferKind buffer) const {
    if (buffer == BufferKind::kInput) return chunks_.input;
    return buffer == BufferKind::kOutput ? chunks_.output : chunks_.scratch;
  }

  Status CheckTables() {
    if (plan_.ranks.size() != program_.size) {
      return Status(Code::kInvalid,
                    std::to_string(plan_.ranks.size()) + " ranks for a program of " + std::to_string(program_.size));
    }
    std::vector<uint32_t> sorted = plan_.ranks;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      return Status(Code::kInvalid, "a rank occurs twice in the group");
    }
    if (Status status = CheckTable("input", chunks_.input, program_.input_chunks); !status.ok()) return status;
    if (Status status = CheckTable("output", chunks_.output, program_.output_chunks); !status.ok()) return status;
    if (Status status = CheckTable("scratch", chunks_.scratch, program_.scratch_chunks); !status.ok()) return status;
    for (const Chunk& chunk : chunks_.scratch) {
      if (chunk.offset < 0) return Status(Code::kInvalid, "a chunk of scratch lies before its buffer");
      plan_.scratch_bytes = std::max(plan_.scratch_bytes, static_cast<uint64_t>(chunk.offset) + chunk.bytes);
    }
    if (plan_.scratch_bytes > kMostBytes) return Status(Code::kInvalid, "scratch is larger than any memory");
    return Status();
  }

  Status CheckTable(const char* name, const std::vector<Chunk>& table, uint32_t expected) const {
    if (table.size() != expected) {
      return Status(Code::kInvalid, std::string(name) + " has " + std::to_string(table.size()) +
                                        " chunks, the program's has " + std::to_string(expected));
    }
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].bytes <= kMostBytes && table[i].offset <= kFarthest && table[i].offset >= -kFarthest) continue;
      return Status(Code::kInvalid, std::string(name) + "'s chunk " + std::to_string(i) + " lies beyond any memory");
    }
    return Status();
  }

  Status Locate(const ChunkSpan& span, Extent& extent) const {
    const std::vector<Chunk>& table = TableOf(span.buffer);
    extent = {table[span.first].offset, table[span.first].bytes};
    for (uint32_t i = span.first + 1; i < span.first + span.count; ++i) {
      if (table[i].offset != extent.offset + static_cast<int64_t>(extent.bytes)) {
        return Status(Code::kInvalid, "chunk " + std::to_string(i) + " does not lie behind the one before it");
      }
      extent.bytes += table[i].bytes;
      if (extent.bytes > kMostBytes) return Status(Code::kInvalid, "the span is larger than any memory");
    }
    return Status();
  }

  Status AddStep(const Step& step) {
    const bool has_source = step.kind != StepKind::kReceive, has_target = step.kind != StepKind::kSend;
    Extent source, target;
    if (has_source) {
      if (Status status = Locate(step.source, source); !status.ok()) return status;
    }
    if (has_target) {
      if (Status status = Locate(step.target, target); !status.ok()) return status;
    }
    if (has_source && has_target && source.bytes != target.bytes) {
      return Status(Code::kInvalid, "the source has " + std::to_string(source.bytes) + " bytes, the target " +
                                        std::to_string(target.bytes));
    }
    PlanStep planned;
    planned.kind = step.kind;
    planned.final = step.final;
    planned.theirs_first = step.kind == StepKind::kReceiveReduce && step.peer < program_.rank;
    planned.source_buffer = step.source.buffer;
    planned.target_buffer = step.target.buffer;
    planned.tag = step.tag;
    if (step.kind != StepKind::kCopy) planned.peer = plan_.ranks[step.peer];
    if (step.kind == StepKind::kSend) planned.message = plan_.sends++;
    if (step.kind == StepKind::kReceive || step.kind == StepKind::kReceiveReduce) planned.message = plan_.receives++;
    planned.source = source.offset;
    planned.target = target.offset;
    planned.length = has_source ? source.bytes : target.bytes;
    if (step.kind == StepKind::kReceiveReduce) {
      plan_.reduced_lengths |= planned.length;
      plan_.reduces = true;
    }
    if (has_source) Touch(step.source.buffer, planned.length);
    if (has_target) Touch(step.target.buffer, planned.length);
    plan_.steps.push_back(planned);
    return Status();
  }

  void Touch(BufferKind buffer, uint64_t bytes) {
    if (bytes == 0) return;
    plan_.needs_input = plan_.needs_input || buffer == BufferKind::kInput;
    plan_.needs_output = plan_.needs_output || buffer == BufferKind::kOutput;
  }

  static int64_t StartOf(const PlanStep& step, Side side) { return side == Side::kSource ? step.source : step.target; }

  // Two steps that share a chunk lie in one contiguous stretch, so the distance of their starts maps progress to
  // progress.
  void LinkSteps() {
    std::vector<std::vector<uint32_t>> wakes(plan_.steps.size());
    for (uint32_t i = 0; i < plan_.steps.size(); ++i) {
      PlanStep& step = plan_.steps[i];
      step.after_begin = static_cast<uint32_t>(plan_.after.size());
      for (const Dependency& dependency : program_.after[i]) {
        const PlanStep& earlier = plan_.steps[dependency.step];
        const int64_t lead = StartOf(earlier, dependency.theirs) - StartOf(step, dependency.ours);
        if (!Matters(earlier, step, lead)) continue;
        plan_.after.push_back({dependency.step, lead});
        if (wakes[dependency.step].empty() || wakes[dependency.step].back() != i) wakes[dependency.step].push_back(i);
      }
      step.after_end = static_cast<uint32_t>(plan_.after.size());
    }
    for (uint32_t i = 0; i < plan_.steps.size(); ++i) {
      plan_.steps[i].wakes_begin = static_cast<uint32_t>(plan_.wakes.size());
      plan_.wakes.insert(plan_.wakes.end(), wakes[i].begin(), wakes[i].end());
      plan_.steps[i].wakes_end = static_cast<uint32_t>(plan_.wakes.size());
    }
  }

  // An empty step has an order all the same: barriers are made of them.
  static bool Matters(const PlanStep& earlier, const PlanStep& step, int64_t lead) {
    if (step.length == 0) return true;
    return earlier.length > 0 && lead + static_cast<int64_t>(earlier.length) > 0 &&
           lead < static_cast<int64_t>(step.length);
  }

  const ChunkTables& chunks_;
  const Program& program_;
  Plan& plan_;
};

}  // namespace

Result<std::shared_ptr<const Plan>> Plan::Make(std::shared_ptr<const Program> program, std::vector<uint32_t> ranks,
                                               const ChunkTables& chunks) {
  auto plan = std::make_shared<Plan>();
  plan->program = std::move(program);
  plan->ranks = std::move(ranks);
  Planner planner(chunks, *plan);
  if (Status status = planner.Run(); !status.ok()) return Status(Code::kInvalid, "plan: " + status.message());
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace byteps_like
