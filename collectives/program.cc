#include "collectives/program.h"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>

namespace byteps_like {
namespace {

constexpr uint32_t kMostChunks = 1u << 24;  // of one buffer: bounded before memory is taken

// The buffers' names as messages have them.
std::string NameOf(BufferKind buffer) {
  constexpr const char* kNames[] = {"input", "output", "scratch"};
  return kNames[static_cast<int>(buffer)];
}

bool HasSource(const Step& step) { return step.kind != StepKind::kReceive; }
bool HasTarget(const Step& step) { return step.kind != StepKind::kSend; }
bool HasPeer(const Step& step) { return step.kind != StepKind::kCopy; }

bool SameSpan(const ChunkSpan& a, const ChunkSpan& b) {
  return a.buffer == b.buffer && a.first == b.first && a.count == b.count;
}
bool Overlap(const ChunkSpan& a, const ChunkSpan& b) {
  return a.buffer == b.buffer && a.first < b.first + b.count && b.first < a.first + a.count;
}

// Tracks which step touched each chunk last.
class Compiler {
 public:
  Compiler(Program& program, int32_t alias) : program_(program), alias_(alias) {}

  Status Run() {
    if (Status status = CheckProgram(); !status.ok()) return status;
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      Step& step = program_.steps[i];
      if (Status status = CheckStep(step); !status.ok()) {
        return Status(status.code(), "step " + std::to_string(i) + ": " + status.message());
      }
      if (HasSource(step)) Redirect(step.source);
      if (HasTarget(step)) Redirect(step.target);
    }
    std::erase_if(program_.steps,
                  [](const Step& step) { return step.kind == StepKind::kCopy && SameSpan(step.source, step.target); });
    if (Status status = CheckSpans(); !status.ok()) return status;
    if (Status status = CheckTags(); !status.ok()) return status;
    FindDependencies();
    return Status();
  }

 private:
  struct Touched {
    int64_t writer = -1;
    std::vector<std::pair<uint32_t, Side>> readers;  // since it was written
  };

  uint32_t ChunksOf(BufferKind buffer) const {
    if (buffer == BufferKind::kInput) return program_.input_chunks;
    return buffer == BufferKind::kOutput ? program_.output_chunks : program_.scratch_chunks;
  }

  Status CheckProgram() const {
    const Program& p = program_;
    if (p.rank >= p.size) {
      return Status(Code::kInvalid, "rank " + std::to_string(p.rank) + " of " + std::to_string(p.size) + " ranks");
    }
    if (std::max({p.input_chunks, p.output_chunks, p.scratch_chunks}) > kMostChunks) {
      return Status(Code::kInvalid, "a buffer has more than " + std::to_string(kMostChunks) + " chunks");
    }
    if (alias_ >= 0 && static_cast<uint64_t>(alias_) + p.input_chunks > p.output_chunks) {
      return Status(Code::kInvalid, "alias " + std::to_string(alias_) + ": the input's " +
                                        std::to_string(p.input_chunks) + " chunks are not in the output's " +
                                        std::to_string(p.output_chunks));
    }
    return Status();
  }

  Status CheckSpan(const ChunkSpan& span, const char* what) const {
    if (static_cast<uint8_t>(span.buffer) > static_cast<uint8_t>(BufferKind::kScratch)) {
      return Status(Code::kInvalid, std::string(what) + ": there is no such buffer");
    }
    const uint32_t chunks = ChunksOf(span.buffer);
    if (span.count >= 1 && span.first <= chunks && span.count <= chunks - span.first) return Status();
    return Status(Code::kInvalid, std::string(what) + ": chunks [" + std::to_string(span.first) + ", " +
                                      std::to_string(uint64_t{span.first} + span.count) + ") of " +
                                      NameOf(span.buffer) + ", which has " + std::to_string(chunks));
  }

  Status CheckStep(const Step& step) const {
    if (static_cast<uint8_t>(step.kind) > static_cast<uint8_t>(StepKind::kCopy)) {
      return Status(Code::kInvalid, "there is no such kind of step");
    }
    if (HasPeer(step) && (step.peer >= program_.size || step.peer == program_.rank)) {
      return Status(Code::kInvalid, "rank " + std::to_string(program_.rank) + " of " + std::to_string(program_.size) +
                                        " has no peer " + std::to_string(step.peer));
    }
    if (HasSource(step)) {
      if (Status status = CheckSpan(step.source, "source"); !status.ok()) return status;
    }
    if (!HasTarget(step)) return Status();
    if (step.target.buffer == BufferKind::kInput && alias_ < 0) {
      return Status(Code::kInvalid, "target: the input is only read");
    }
    return CheckSpan(step.target, "target");
  }

  void Redirect(ChunkSpan& span) const {
    if (alias_ < 0 || span.buffer != BufferKind::kInput) return;
    span.buffer = BufferKind::kOutput;
    span.first += static_cast<uint32_t>(alias_);
  }

  // If source and target overlapped in part, a step could overwrite bytes that it has yet to read.
  Status CheckSpans() const {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (!HasSource(step) || !HasTarget(step) || SameSpan(step.source, step.target)) continue;
      if (Overlap(step.source, step.target)) {
        return Status(Code::kInvalid, "step " + std::to_string(i) + ": source and target overlap in part");
      }
    }
    return Status();
  }

  Status CheckTags() const {
    std::vector<std::tuple<bool, uint32_t, uint32_t>> messages;
    for (const Step& step : program_.steps) {
      if (HasPeer(step)) messages.emplace_back(step.kind == StepKind::kSend, step.peer, step.tag);
    }
    std::sort(messages.begin(), messages.end());
    const auto twice = std::adjacent_find(messages.begin(), messages.end());
    if (twice == messages.end()) return Status();
    const auto [is_send, peer, tag] = *twice;
    return Status(Code::kInvalid, std::string(is_send ? "two sends to" : "two receives from") + " rank " +
                                      std::to_string(peer) + " have tag " + std::to_string(tag));
  }

  void FindDependencies() {
    for (int buffer = 0; buffer < 3; ++buffer) {
      touched_[static_cast<size_t>(buffer)].resize(ChunksOf(static_cast<BufferKind>(buffer)));
    }
    program_.after.assign(program_.steps.size(), {});
    for (uint32_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      const bool in_place = HasSource(step) && HasTarget(step) && SameSpan(step.source, step.target);
      if (HasSource(step) && !in_place) Reads(i, step.source);
      if (HasTarget(step)) Writes(i, step.target);
    }
  }

  void Reads(uint32_t step, const ChunkSpan& span) {
    for (uint32_t chunk = span.first; chunk < span.first + span.count; ++chunk) {
      Touched& touched = touched_[static_cast<size_t>(span.buffer)][chunk];
      if (touched.writer >= 0) Add(step, {static_cast<uint32_t>(touched.writer), Side::kTarget, Side::kSource});
      touched.readers.emplace_back(step, Side::kSource);
    }
  }

  void Writes(uint32_t step, const ChunkSpan& span) {
    for (uint32_t chunk = span.first; chunk < span.first + span.count; ++chunk) {
      Touched& touched = touched_[static_cast<size_t>(span.buffer)][chunk];
      if (touched.writer >= 0) Add(step, {static_cast<uint32_t>(touched.writer), Side::kTarget, Side::kTarget});
      for (const auto& [reader, side] : touched.readers) Add(step, {reader, side, Side::kTarget});
      touched.writer = step;
      touched.readers.clear();
    }
  }

  void Add(uint32_t step, const Dependency& dependency) {
    if (dependency.step == step) return;
    auto& after = program_.after[step];
    const auto same = [&](const Dependency& other) {
      return other.step == dependency.step && other.theirs == dependency.theirs && other.ours == dependency.ours;
    };
    if (std::none_of(after.begin(), after.end(), same)) after.push_back(dependency);
  }

  Program& program_;
  const int32_t alias_;
  std::array<std::vector<Touched>, 3> touched_;
};

}  // namespace

Result<std::shared_ptr<const Program>> Program::Compile(Program program, int32_t alias) {
  auto compiled = std::make_shared<Program>(std::move(program));
  Compiler compiler(*compiled, alias);
  if (Status status = compiler.Run(); !status.ok()) return Status(Code::kInvalid, "program: " + status.message());
  return std::shared_ptr<const Program>(std::move(compiled));
}

}  // namespace byteps_like
