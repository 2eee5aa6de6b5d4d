#include "byteps_like/_native/program_py.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "byteps_like/_native/events.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

struct PyProgram {
  std::shared_ptr<const Program> program;
};

// kind, peer, tag, source buffer, first, count, target buffer, first, count, final. A buffer of -1: none.
using StepTuple = std::tuple<int, int64_t, uint32_t, int, uint32_t, uint32_t, int, uint32_t, uint32_t, bool>;
using ChunkList = std::vector<std::pair<int64_t, uint64_t>>;

// Out of range becomes a value that Compile refuses.
template <typename Enum>
Enum ToEnum(int code) {
  return static_cast<Enum>(code >= 0 && code < 255 ? code : 255);
}

ChunkSpan ToSpan(int buffer, uint32_t first, uint32_t count) {
  if (buffer == -1) return {};
  return {ToEnum<BufferKind>(buffer), first, count};
}

PyProgram MakeProgram(uint32_t rank, uint32_t size, uint32_t input_chunks, uint32_t output_chunks,
                      uint32_t scratch_chunks, const std::vector<StepTuple>& steps, int64_t alias) {
  Program program{rank, size, input_chunks, output_chunks, scratch_chunks, {}, {}};
  program.steps.reserve(steps.size());
  for (const auto& [kind, peer, tag, source_buffer, source_first, source_count, target_buffer, target_first,
                    target_count, final] : steps) {
    const bool is_rank = peer >= 0 && peer < std::numeric_limits<uint32_t>::max();
    program.steps.push_back({ToEnum<StepKind>(kind), is_rank ? static_cast<uint32_t>(peer) : ~0u, tag,
                             ToSpan(source_buffer, source_first, source_count),
                             ToSpan(target_buffer, target_first, target_count), final});
  }
  // An alias beyond 31 bits is beyond any output, too.
  const auto bounded = static_cast<int32_t>(std::min<int64_t>(alias, std::numeric_limits<int32_t>::max()));
  auto compiled = Program::Compile(std::move(program), std::max(bounded, -1));
  ThrowIfFailed(compiled.status());
  return {*compiled};
}

std::vector<Chunk> ToChunks(const ChunkList& list) {
  std::vector<Chunk> chunks;
  chunks.reserve(list.size());
  for (const auto& [offset, bytes] : list) chunks.push_back({offset, bytes});
  return chunks;
}

PyPlan MakePlan(const PyProgram& program, std::vector<uint32_t> ranks, const ChunkList& input, const ChunkList& output,
                const ChunkList& scratch) {
  auto plan = Plan::Make(program.program, std::move(ranks), {ToChunks(input), ToChunks(output), ToChunks(scratch)});
  ThrowIfFailed(plan.status());
  return {*plan};
}

}  // namespace

void BindProgram(nb::module_& m) {
  nb::class_<PyProgram>(m, "Program", "One rank's part of a schedule, ready to be bound to sizes. Immutable.")
      .def(nb::new_(&MakeProgram), nb::arg("rank"), nb::arg("size"), nb::arg("input_chunks"), nb::arg("output_chunks"),
           nb::arg("scratch_chunks"), nb::arg("steps"), nb::arg("alias") = -1,
           "Steps are tuples (kind, peer, tag, source buffer, first, count, target buffer, first, count, final), with "
           "buffer -1 for none. `alias`: the output's chunk at which the input begins, or -1. Raises "
           "InvalidArgumentError, naming the step that is wrong.")
      .def_prop_ro("steps", [](const PyProgram& self) { return self.program->steps.size(); })
      .def_prop_ro("dependencies", [](const PyProgram& self) {
        std::vector<std::vector<uint32_t>> after(self.program->after.size());
        for (size_t i = 0; i < after.size(); ++i) {
          for (const Dependency& dependency : self.program->after[i]) after[i].push_back(dependency.step);
        }
        return after;
      });
  nb::class_<PyPlan>(m, "Plan", "A program bound to ranks and sizes: what `launch` takes. Immutable; keep it.")
      .def(nb::new_(&MakePlan), nb::arg("program"), nb::arg("ranks"), nb::arg("input_chunks"), nb::arg("output_chunks"),
           nb::arg("scratch_chunks"),
           "Chunks are (byte offset from the buffer's address, bytes); `ranks` are the group's, by world rank. Raises "
           "InvalidArgumentError for tables that don't fit the program.")
      .def_prop_ro("scratch_bytes", [](const PyPlan& self) { return self.plan->scratch_bytes; });
}

}  // namespace byteps_like
