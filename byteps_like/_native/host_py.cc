// Host groups as Python holds them: collectives among ranks of one host in shared memory.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "byteps_like/_native/communicator_py.h"
#include "collectives/host/host.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using Chunks = std::vector<std::pair<int64_t, uint64_t>>;

struct PyHostGroup {
  PyHostGroup(std::shared_ptr<HostGroup> made, uint64_t number) : group(std::move(made)), lane(number) {}
  ~PyHostGroup() {
    // A forked child must not give the parent's place in the shared memory back.
    if (fork_guard.forked()) new std::shared_ptr<HostGroup>(std::move(group));
  }
  std::shared_ptr<HostGroup> group;
  const uint64_t lane;
  const ForkGuard fork_guard;
};

std::vector<Chunk> ToChunks(const Chunks& pairs) {
  std::vector<Chunk> chunks;
  for (const auto& [offset, bytes] : pairs) chunks.push_back({offset, bytes});
  return chunks;
}

// The part that calls of one shape share, so that each call passes only its addresses.
class PyHostPlan {
 public:
  PyHostPlan(PyHostGroup& host, uint8_t kind, uint8_t dtype, uint8_t op, uint32_t divisor, uint32_t root,
             uint64_t nbytes, bool reads, bool writes, const Chunks& input_chunks, const Chunks& output_chunks)
      : host_(host),
        reads_(reads),
        writes_(writes),
        inputs_(ToChunks(input_chunks)),
        outputs_(ToChunks(output_chunks)) {
    call_.kind = static_cast<HostKind>(kind);
    call_.dtype = static_cast<DType>(dtype);
    call_.op = static_cast<Op>(op);
    call_.divisor = divisor;
    call_.root = root;
    call_.bytes = nbytes;
    call_.lane = host.lane;
    call_.input_chunks = inputs_;
    call_.output_chunks = outputs_;
  }
  PyHostPlan(const PyHostPlan&) = delete;

  std::shared_ptr<Completion> Launch(uintptr_t input, uintptr_t output, double timeout) const {
    return host_.group->Launch(CallOf(input, output, timeout));
  }

  // Blocks, on the caller's thread from end to end; Ctrl-C gives the call up on all ranks.
  std::optional<std::pair<int, std::string>> Run(uintptr_t input, uintptr_t output, double timeout) const {
    const HostCall call = CallOf(input, output, timeout);
    const Status status = BlockWithoutGil([&] { return host_.group->Run(call, &Interrupted); });
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    if (status.ok()) return std::nullopt;
    return std::pair(static_cast<int>(status.code()), status.message());
  }

 private:
  HostCall CallOf(uintptr_t input, uintptr_t output, double timeout) const {
    host_.fork_guard.Check();
    HostCall call = call_;
    if (reads_) call.input = reinterpret_cast<const std::byte*>(input);
    if (writes_) call.output = reinterpret_cast<std::byte*>(output);
    call.timeout = timeout;
    return call;
  }
  static bool Interrupted() {
    if (InterpreterIsEnding()) return false;
    const nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  }

  PyHostGroup& host_;  // kept alive by Python
  const bool reads_, writes_;
  const std::vector<Chunk> inputs_, outputs_;
  HostCall call_;
};

PyHostGroup* MakeGroup(PyCommunicator& self, uint64_t lane, const std::vector<uint32_t>& ranks, double timeout) {
  Communicator& communicator = self.get();
  const Deadline deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout, 1e8)));
  auto group = BlockWithoutGil([&] { return communicator.Group(lane, ranks, deadline); });
  ThrowIfFailed(group.status());
  return new PyHostGroup(std::move(*group), lane);
}

}  // namespace

void BindHost(nb::module_& m) {
  m.attr("MOST_HOST_RANKS") = kMostHostRanks;
  nb::class_<PyHostGroup>(m, "HostGroup", "Collectives among ranks of one host, in shared memory. Thread-safe.")
      .def(nb::new_(&MakeGroup), nb::arg("communicator"), nb::arg("lane"), nb::arg("ranks"), nb::arg("timeout"),
           "The group of these world ranks, all on this host; blocks until they share memory.")
      .def(
          "cancel",
          [](PyHostGroup& self, const std::shared_ptr<Completion>& call, int code, const std::string& text) {
            self.group->Cancel(call, Status(CodeFrom(static_cast<uint32_t>(code)), text));
          },
          nb::arg("call"), nb::arg("code"), nb::arg("text"), "Fails the call on all ranks.");
  nb::class_<PyHostPlan>(m, "HostPlan", "A collective of a host group but for its addresses. Thread-safe.")
      .def(nb::init<PyHostGroup&, uint8_t, uint8_t, uint8_t, uint32_t, uint32_t, uint64_t, bool, bool, const Chunks&,
                    const Chunks&>(),
           nb::keep_alive<1, 2>(), nb::arg("group"), nb::arg("kind"), nb::arg("dtype"), nb::arg("op"),
           nb::arg("divisor"), nb::arg("root"), nb::arg("nbytes"), nb::arg("reads"), nb::arg("writes"),
           nb::arg("input_chunks"), nb::arg("output_chunks"),
           "`reads`, `writes`: this rank has an input, an output. Kinds: 0 all_reduce, 1 reduce_scatter, 2 all_gather, "
           "3 broadcast, 4 reduce, 5 scatter, 6 gather, "
           "7 all_to_all, 8 barrier; `nbytes` and chunks (offset, bytes) as collectives/host/host.h says.")
      .def("launch", &PyHostPlan::Launch, nb::arg("input"), nb::arg("output"), nb::arg("timeout"),
           "Begins a call and returns its Completion at once.")
      .def("run", &PyHostPlan::Run, nb::arg("input"), nb::arg("output"), nb::arg("timeout"),
           "Makes a call and blocks until it has ended. None if it ended well, else (code, text).");
}

}  // namespace byteps_like
