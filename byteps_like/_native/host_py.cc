// Host groups as Python holds them: collectives among ranks of one host in shared memory.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "byteps_like/_native/communicator_py.h"
#include "collectives/host.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using Chunks = std::vector<std::pair<int64_t, uint64_t>>;

struct PyHostGroup {
  explicit PyHostGroup(std::shared_ptr<HostGroup> made) : group(std::move(made)) {}
  ~PyHostGroup() {
    // A forked child must not give the parent's place in the shared memory back.
    if (fork_guard.forked()) new std::shared_ptr<HostGroup>(std::move(group));
  }
  std::shared_ptr<HostGroup> group;
  const ForkGuard fork_guard;
};

HostCall ToCall(uint8_t kind, uint8_t dtype, uint8_t op, uint32_t divisor, uint32_t root, uintptr_t input,
                uintptr_t output, uint64_t nbytes, double timeout) {
  HostCall call;
  call.kind = static_cast<HostKind>(kind);
  call.dtype = static_cast<DType>(dtype);
  call.op = static_cast<Op>(op);
  call.divisor = divisor;
  call.root = root;
  call.input = reinterpret_cast<const std::byte*>(input);
  call.output = reinterpret_cast<std::byte*>(output);
  call.bytes = nbytes;
  call.timeout = timeout;
  return call;
}

std::vector<Chunk> ToChunks(const Chunks& pairs) {
  std::vector<Chunk> chunks;
  for (const auto& [offset, bytes] : pairs) chunks.push_back({offset, bytes});
  return chunks;
}

std::shared_ptr<Completion> Launch(PyHostGroup& self, uint8_t kind, uint8_t dtype, uint8_t op, uint32_t divisor,
                                   uint32_t root, uintptr_t input, uintptr_t output, uint64_t nbytes,
                                   const Chunks& input_chunks, const Chunks& output_chunks, double timeout,
                                   bool waits_now) {
  self.fork_guard.Check();
  HostCall call = ToCall(kind, dtype, op, divisor, root, input, output, nbytes, timeout);
  const std::vector<Chunk> inputs = ToChunks(input_chunks), outputs = ToChunks(output_chunks);
  call.input_chunks = inputs;
  call.output_chunks = outputs;
  return self.group->Launch(call, waits_now);
}

// Blocks; Ctrl-C is heard, and gives the call up on all ranks.
void AllReduce(PyHostGroup& self, uintptr_t input, uintptr_t output, uint64_t nbytes, uint8_t dtype, uint8_t op,
               uint32_t divisor, double timeout) {
  self.fork_guard.Check();
  const HostCall call =
      ToCall(static_cast<uint8_t>(HostKind::kAllReduce), dtype, op, divisor, 0, input, output, nbytes, timeout);
  const auto completion = self.group->Launch(call, true);
  try {
    WaitFor(*completion, timeout + 60);  // the call itself ends at its deadline
  } catch (const nb::python_error&) {
    if (!completion->done()) self.group->Cancel(completion, Status(Code::kClosed, "interrupted on one rank"));
    throw;
  }
}

PyHostGroup* MakeGroup(PyCommunicator& self, uint64_t lane, const std::vector<uint32_t>& ranks, double timeout) {
  Communicator& communicator = self.get();
  const Deadline deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout, 1e8)));
  auto group = BlockWithoutGil([&] { return communicator.Group(lane, ranks, deadline); });
  ThrowIfFailed(group.status());
  return new PyHostGroup(std::move(*group));
}

}  // namespace

void BindHost(nb::module_& m) {
  nb::class_<PyHostGroup>(m, "HostGroup", "Collectives among ranks of one host, in shared memory. Thread-safe.")
      .def(nb::new_(&MakeGroup), nb::arg("communicator"), nb::arg("lane"), nb::arg("ranks"), nb::arg("timeout"),
           "The group of these world ranks, all on this host; blocks until they share memory.")
      .def(
          "launch", &Launch, nb::arg("kind"), nb::arg("dtype"), nb::arg("op"), nb::arg("divisor"), nb::arg("root"),
          nb::arg("input"), nb::arg("output"), nb::arg("nbytes"), nb::arg("input_chunks"), nb::arg("output_chunks"),
          nb::arg("timeout"), nb::arg("waits_now") = false,
          "Begins a collective and returns its Completion. Kinds: 0 all_reduce, 1 reduce_scatter, 2 all_gather, "
          "3 broadcast, 4 reduce, 5 scatter, 6 gather, 7 all_to_all, 8 barrier; `nbytes` and chunks (offset, bytes) as "
          "collectives/host.h says.")
      .def("all_reduce", &AllReduce, nb::arg("input"), nb::arg("output"), nb::arg("nbytes"), nb::arg("dtype"),
           nb::arg("op"), nb::arg("divisor"), nb::arg("timeout"), "Blocks until the result is in `output`.")
      .def(
          "cancel",
          [](PyHostGroup& self, const std::shared_ptr<Completion>& call, int code, const std::string& text) {
            self.group->Cancel(call, Status(static_cast<Code>(code), text));
          },
          nb::arg("call"), nb::arg("code"), nb::arg("text"), "Fails the call on all ranks.");
}

}  // namespace byteps_like
