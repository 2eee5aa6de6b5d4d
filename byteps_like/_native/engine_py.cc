#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "byteps_like/_native/events.h"
#include "byteps_like/_native/gpu/gpu_py.h"
#include "byteps_like/_native/incarnation.h"
#include "compression/gpu/registry.h"
#include "compression/registry.h"
#include "csrc/engine/engine.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using Shards = std::vector<std::tuple<uint32_t, uint32_t, std::vector<std::string>, uint32_t>>;
using Partitions = std::vector<std::tuple<uint64_t, uint64_t, uint32_t, uint32_t>>;

Deadline After(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class PyEngine {
 public:
  using Events = EventQueue<int, std::string, bool>;  // code, text, fatal

  PyEngine(EngineOptions options, std::vector<ShardAddress> shards) {
    options.on_event = [this](Code code, const std::string& text, bool fatal) {
      events_.Push(static_cast<int>(code), text, fatal);
    };
    Status status;
    {
      nb::gil_scoped_release release;
      auto engine = Engine::Start(std::move(options), std::move(shards));
      status = engine.status();
      if (engine.ok()) engine_ = std::move(*engine);
    }
    ThrowIfFailed(status);
  }

  ~PyEngine() {
    nb::gil_scoped_release release;
    if (fork_guard_.forked()) (void)engine_.release();
    engine_.reset();
  }

  void Close() {
    if (!fork_guard_.forked()) engine_->Close();
    events_.Close();
  }

  // Waits in slices so that Ctrl-C is heard; the data path doesn't need the GIL meanwhile.
  bool Wait(Operation& operation, double seconds) {
    fork_guard_.Check();
    const Deadline deadline = After(seconds);
    for (;;) {
      const Status status =
          BlockWithoutGil([&] { return engine_->Wait(operation, std::min(deadline, After(kSlice))); });
      if (status.code() != Code::kTimeout) {
        ThrowIfFailed(status);
        return true;
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (Clock::now() >= deadline) return false;
    }
  }

  // One object for one text and world: the engine tells codecs apart by it. The interpreter's lock guards the table.
  CodecPointer CodecOf(const std::string& spec) {
    const uint32_t world = engine_->standing().world_size;
    CodecPointer& codec = codecs_[{spec, world}];
    if (!codec) {
      auto made = MakeCodec(spec, world);
      ThrowIfFailed(made.status());
      codec = *made;
    }
    return codec;
  }

  // Likewise; nullptr where a codec has none, or the engine no kernels for it.
  GpuCodecPointer TwinOf(const std::string& spec) {
    const CodecPointer codec = CodecOf(spec);
    const auto known = twins_.find(codec);
    if (known != twins_.end()) return known->second;
    auto made = MakeGpuCodec(codec, kernels_);
    return twins_[codec] = made.ok() ? *made : nullptr;
  }

  void UseGpu(const PyGpu& gpu, const std::map<std::string, uint64_t>& functions) {
    const KernelTable kernels(functions.begin(), functions.end());
    ThrowIfFailed(BlockWithoutGil([&] { return engine().UseGpu(gpu.gpu.held(), kernels); }));
    kernels_ = kernels;
  }

  void AddKernels(const std::map<std::string, uint64_t>& functions) {
    kernels_.insert(functions.begin(), functions.end());
    std::erase_if(twins_, [](const auto& one) { return !one.second; });
    ThrowIfFailed(BlockWithoutGil([&] { return engine().AddKernels(kernels_); }));
  }

  Engine& engine() {
    fork_guard_.Check();
    return *engine_;
  }
  Events& events() { return events_; }

 private:
  static constexpr double kSlice = 0.2;
  const ForkGuard fork_guard_;
  std::map<std::pair<std::string, uint32_t>, CodecPointer> codecs_;  // by text and size of the world
  KernelTable kernels_;
  std::map<CodecPointer, GpuCodecPointer> twins_;
  Events events_;
  std::unique_ptr<Engine> engine_;
};

PyEngine* MakeEngine(const std::string& job, nb::bytes secret, nb::bytes incarnation, uint32_t epoch, uint32_t rank,
                     uint32_t member, uint32_t world_size, const Shards& shards, size_t segment_bytes,
                     size_t credit_bytes, double connect_timeout, double stall_warning, double stall_timeout,
                     uint32_t kernel_queue_bytes, uint32_t codec_threads, uint32_t local_workers, size_t least_segment,
                     bool outlives_servers) {
  EngineOptions options;
  options.credentials = {job, std::string(secret.c_str(), secret.size()), epoch, IncarnationOf(incarnation)};
  options.standing = {rank, world_size};
  options.member = member;
  options.segment_bytes = segment_bytes;
  options.credit_bytes = credit_bytes;
  options.connect_timeout = connect_timeout;
  options.stall_warning = stall_warning;
  options.stall_timeout = stall_timeout;
  options.kernel_queue_bytes = kernel_queue_bytes;
  options.codec_threads = codec_threads;
  options.local_workers = local_workers;
  options.least_segment = least_segment;
  options.outlives_servers = outlives_servers;
  std::vector<ShardAddress> addresses;
  for (const auto& [server, shard, urls, number] : shards) addresses.push_back({server, shard, urls, number});
  return new PyEngine(std::move(options), std::move(addresses));
}

// `codec`: canonical text, "" for none; `text`: what servers are told.
uint32_t Declare(PyEngine& self, int dtype, const Partitions& partitions, const std::string& codec,
                 const std::string& text, bool gpu, const std::set<uint32_t>& absent,
                 const std::vector<std::pair<uint32_t, uint32_t>>& owners) {
  std::vector<PartitionSpec> specs;
  for (const auto& [key, offset, bytes, channel] : partitions)
    specs.push_back({key, offset, bytes, channel, absent.contains(static_cast<uint32_t>(specs.size())), {}});
  for (size_t i = 0; i < owners.size() && i < specs.size(); ++i) specs[i].owner = {owners[i].first, owners[i].second};
  if (codec.empty()) return self.engine().Declare(static_cast<DType>(dtype), specs);
  auto declared = self.engine().DeclareCoded(specs, {self.CodecOf(codec), text, gpu ? self.TwinOf(codec) : nullptr});
  ThrowIfFailed(declared.status());
  return *declared;
}

void SetFeedback(PyEngine& self, uint32_t tensor, uintptr_t residual, uintptr_t momentum, float mu, bool nesterov,
                 bool masked, bool on_gpu) {
  self.engine().SetFeedback(tensor, {.residual = reinterpret_cast<float*>(residual),
                                     .momentum = reinterpret_cast<float*>(momentum),
                                     .mu = mu,
                                     .nesterov = nesterov,
                                     .masked = masked,
                                     .on_gpu = on_gpu});
}

std::shared_ptr<Operation> Submit(PyEngine& self, uint32_t tensor, uintptr_t address, uint32_t first, uint32_t last,
                                  int op, uint32_t root, int32_t priority, bool movable, uint64_t device,
                                  uint64_t stream) {
  Engine::Request request;
  request.tensor = tensor;
  request.address = reinterpret_cast<std::byte*>(address);
  request.first_part = first;
  request.last_part = last;
  request.op = static_cast<Op>(op);
  request.root = root;
  request.priority = priority;
  request.movable = movable;
  request.device = device;
  request.stream = stream;
  Engine& engine = self.engine();
  const auto submit = [&] { return engine.Submit(request); };
  auto operation = device == 0 ? submit() : BlockWithoutGil(submit);  // the driver blocks where a queue is full
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> Keep(PyEngine& self, uint32_t tensor, const std::string& text, uint32_t width,
                                    uint32_t root, uintptr_t address, size_t bytes) {
  const std::span initial(reinterpret_cast<const std::byte*>(address), bytes);
  auto operation =
      self.engine().Keep({.tensor = tensor, .text = text, .width = width, .root = root, .initial = initial});
  ThrowIfFailed(operation.status());
  return *operation;
}

using Chosen = std::vector<uint32_t>;

Engine::KeepRequest RequestOf(uint32_t tensor, uintptr_t address, const Chosen& parts, int32_t priority) {
  return {.tensor = tensor, .address = reinterpret_cast<std::byte*>(address), .parts = parts, .priority = priority};
}

Note NoteOf(const nb::bytes& note) {
  if (note.size() != kNoteBytes) throw nb::value_error("a note has 32 bytes");
  const std::span<const std::byte, kNoteBytes> written(reinterpret_cast<const std::byte*>(note.c_str()), kNoteBytes);
  auto decoded = DecodeNote(written);
  ThrowIfFailed(decoded.status());
  return *decoded;
}

std::shared_ptr<KeepOperation> Contribute(PyEngine& self, uint32_t tensor, uintptr_t address, const Chosen& parts,
                                          int32_t priority, nb::bytes note) {
  auto operation = self.engine().Contribute(RequestOf(tensor, address, parts, priority), NoteOf(note));
  ThrowIfFailed(operation.status());
  return *operation;
}

// Of each payload the partition, its address, and its bytes.
using Payloads = std::vector<std::tuple<uint32_t, uintptr_t, uint32_t>>;

std::shared_ptr<KeepOperation> ContributeFiltered(PyEngine& self, uint32_t tensor, const Payloads& payloads,
                                                  int32_t priority, nb::bytes note) {
  std::vector<Engine::Payload> each;
  for (const auto& [part, address, bytes] : payloads)
    each.push_back({part, reinterpret_cast<const std::byte*>(address), bytes});
  auto operation = self.engine().ContributeFiltered(tensor, each, NoteOf(note), priority);
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> Tick(PyEngine& self, uint32_t tensor, const Chosen& parts, int32_t priority,
                                    nb::bytes note) {
  auto operation = self.engine().Tick(RequestOf(tensor, 0, parts, priority), NoteOf(note));
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> Read(PyEngine& self, uint32_t tensor, uintptr_t address, const Chosen& parts,
                                    int32_t priority, uint32_t least) {
  auto operation = self.engine().Read(RequestOf(tensor, address, parts, priority), least);
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> ReadFiltered(PyEngine& self, uint32_t tensor, const Chosen& parts, int32_t priority,
                                            uint32_t least) {
  auto operation = self.engine().ReadFiltered(RequestOf(tensor, 0, parts, priority), least);
  ThrowIfFailed(operation.status());
  return *operation;
}

// Which rows at which shard: the number of its first partition, the list, where the rows are, and their bytes.
using Rows = std::vector<std::tuple<uint32_t, std::shared_ptr<RowList>, uintptr_t, uint32_t>>;

std::vector<Engine::TableRows> RowsOf(const Rows& rows) {
  std::vector<Engine::TableRows> found;
  for (const auto& [part, list, address, bytes] : rows)
    found.push_back({part, list, reinterpret_cast<std::byte*>(address), bytes});
  return found;
}

std::shared_ptr<RowList> MakeRowList(uintptr_t address, size_t count) {
  return std::make_shared<RowList>(std::span(reinterpret_cast<const uint64_t*>(address), count));
}

std::shared_ptr<KeepOperation> KeepTable(PyEngine& self, uint32_t tensor, const Chosen& parts, const std::string& text,
                                         uint32_t width) {
  auto operation = self.engine().KeepTable({.tensor = tensor, .parts = parts, .text = text, .width = width});
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> ContributeRows(PyEngine& self, uint32_t tensor, const Rows& rows, int32_t priority,
                                              nb::bytes note) {
  auto operation = self.engine().ContributeRows(tensor, RowsOf(rows), NoteOf(note), priority);
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> FetchRows(PyEngine& self, uint32_t tensor, const Rows& rows, int32_t priority) {
  auto operation = self.engine().FetchRows(tensor, RowsOf(rows), priority);
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> FetchFiltered(PyEngine& self, uint32_t tensor, const Rows& rows, int32_t priority) {
  auto operation = self.engine().FetchFiltered(tensor, RowsOf(rows), priority);
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> FetchRange(PyEngine& self, uint32_t tensor, const Chosen& parts, int32_t priority,
                                          uint64_t low, uint64_t high, const std::vector<uint64_t>& since,
                                          uint32_t most) {
  if (since.size() != parts.size()) throw nb::value_error("of each part a version, since which rows are read");
  auto operation = self.engine().FetchRange(RequestOf(tensor, 0, parts, priority), {low, high, since, most});
  ThrowIfFailed(operation.status());
  return *operation;
}

// Of each part, what a read has found whose length only its server knows.
std::vector<nb::bytes> Ranges(const KeepOperation& operation) {
  std::vector<nb::bytes> ranges;
  if (!operation.done()) return ranges;
  for (const auto& one : operation.ranges) ranges.emplace_back(reinterpret_cast<const char*>(one.data()), one.size());
  return ranges;
}

std::vector<std::tuple<int, uint64_t, std::vector<uint32_t>>> Outcomes(const KeepOperation& operation) {
  std::vector<std::tuple<int, uint64_t, std::vector<uint32_t>>> outcomes;
  if (!operation.done()) return outcomes;
  for (const KeepOutcome& one : operation.outcomes)
    outcomes.emplace_back(static_cast<int>(one.applied), one.version, one.contributors);
  return outcomes;
}

std::shared_ptr<KeepOperation> Call(PyEngine& self, const std::vector<uint32_t>& tensors, nb::bytes text) {
  auto operation = self.engine().Call(tensors, std::string(text.c_str(), text.size()));
  ThrowIfFailed(operation.status());
  return *operation;
}

std::shared_ptr<KeepOperation> CallTable(PyEngine& self, uint32_t tensor, const std::vector<uint32_t>& parts,
                                         nb::bytes text) {
  auto operation = self.engine().CallTable(tensor, parts, std::string(text.c_str(), text.size()));
  ThrowIfFailed(operation.status());
  return *operation;
}

// Of each request whether it is a cut, the tensor and the partition that lead to its shard, the keys behind whose
// contributions it goes, and what it says.
using SavingRequests = std::vector<std::tuple<bool, uint32_t, uint32_t, std::vector<uint64_t>, nb::bytes>>;

std::shared_ptr<KeepOperation> AskSaving(PyEngine& self, const SavingRequests& requests) {
  std::vector<Engine::SavingRequest> asked;
  for (const auto& [cut, tensor, part, behind, text] : requests)
    asked.push_back({.type = cut ? FrameType::kCut : FrameType::kState,
                     .tensor = tensor,
                     .part = part,
                     .behind = behind,
                     .text = std::string(text.c_str(), text.size())});
  auto operation = self.engine().Ask(asked);
  ThrowIfFailed(operation.status());
  return *operation;
}

std::vector<nb::bytes> Answers(const KeepOperation& operation) {
  std::vector<nb::bytes> answers;
  if (!operation.done()) return answers;
  for (const std::string& one : operation.answers) answers.emplace_back(one.data(), one.size());
  return answers;
}

bool WaitOnStream(PyEngine& self, const Operation& operation, uint64_t stream) {
  Engine& engine = self.engine();
  auto waits = BlockWithoutGil([&] { return engine.WaitOnStream(operation, stream); });
  ThrowIfFailed(waits.status());
  return *waits;
}

// (rank, key, bytes of its contribution that are in the result, bytes of all of it).
std::vector<std::tuple<uint32_t, uint64_t, uint32_t, uint32_t>> AbsencesOf(const Operation& operation) {
  std::vector<std::tuple<uint32_t, uint64_t, uint32_t, uint32_t>> absences;
  if (!operation.done()) return absences;
  for (const Absence& one : operation.absences) absences.emplace_back(one.rank, one.key, one.bytes, one.total);
  return absences;
}

std::map<std::string, uint64_t> Counters(PyEngine& self) {
  const LinkCounters counters = self.engine().counters();
  const CodedCounters coded = self.engine().coded(), gpu_coded = self.engine().gpu_coded();
  return {{"frames_sent", counters.frames_sent},
          {"frames_received", counters.frames_received},
          {"bytes_sent", counters.bytes_sent},
          {"bytes_received", counters.bytes_received},
          {"payload_sent", counters.payload_sent},
          {"payload_received", counters.payload_received},
          {"payload_placed", counters.payload_placed},
          {"bounced", self.engine().bounced()},
          {"encoded_in", coded.bytes_in},
          {"encoded_out", coded.bytes_out},
          {"gpu_encoded_in", gpu_coded.bytes_in},
          {"gpu_encoded_out", gpu_coded.bytes_out},
          {"staged_down", self.engine().bytes_down()},
          {"staged_up", self.engine().bytes_up()}};
}

}  // namespace

void BindEngine(nb::module_& m) {
  nb::class_<Operation>(m, "Operation")
      .def("done", &Operation::done)
      .def_prop_ro("moves", [](const Operation& self) { return self.done() && self.moves.load(); })
      .def_prop_ro("absences", &AbsencesOf,
                   "Of ranks that are gone: (rank, key, bytes of its contribution that are in the result, bytes of all "
                   "of it; 0: it had not begun). None before it is done.");
  nb::class_<KeepOperation, Operation>(m, "KeepOperation")
      .def("outcomes", &Outcomes,
           "(what became of it, version, contributors) of each partition; none before it is done.")
      .def("ranges", &Ranges, "Of each part, what a read of a range, or through filters, has found.")
      .def("answers", &Answers, "To a call, of each shard; none before it is done.");
  nb::class_<RowList>(m, "RowList", "Ids of rows of a table, ascending, at one shard; copied.")
      .def(nb::new_(&MakeRowList), nb::arg("address"), nb::arg("count"))
      .def("__len__", [](const RowList& self) { return self.ids.size(); });
  nb::class_<PyEngine>(m, "Engine", "The worker's engine; see byteps_like/worker/engine/native.py.")
      .def(nb::new_(&MakeEngine), nb::arg("job"), nb::arg("secret"), nb::arg("incarnation"), nb::arg("epoch"),
           nb::arg("rank"), nb::arg("member"), nb::arg("world_size"), nb::arg("shards"), nb::arg("segment_bytes"),
           nb::arg("credit_bytes"), nb::arg("connect_timeout"), nb::arg("stall_warning"), nb::arg("stall_timeout"),
           nb::arg("kernel_queue_bytes") = kDefaultKernelQueue, nb::arg("codec_threads") = 1,
           nb::arg("local_workers") = 1, nb::arg("least_segment") = EngineOptions().least_segment,
           nb::arg("outlives_servers") = false)
      .def("declare", &Declare, nb::arg("dtype"), nb::arg("partitions"), nb::arg("codec") = "", nb::arg("text") = "",
           nb::arg("gpu") = false, nb::arg("absent") = std::set<uint32_t>(),
           nb::arg("owners") = std::vector<std::pair<uint32_t, uint32_t>>(),
           "Partitions are (key, offset, bytes, index of the shard); returns the tensor's id. With `gpu` it is encoded "
           "on the GPU, where its codec has a twin there. To `absent` ones this rank brings nothing, and gets nothing. "
           "`owners`: where partitions go through aggregators, the (server, shard) that each goes on to.")
      .def("set_feedback", &SetFeedback, nb::arg("tensor"), nb::arg("residual"), nb::arg("momentum"), nb::arg("mu"),
           nb::arg("nesterov"), nb::arg("masked"), nb::arg("on_gpu") = false,
           "Addresses of arrays as long as the tensor, 0 for none; with `on_gpu` they are of device memory.")
      .def(
          "rescale", [](PyEngine& self, uint32_t tensor, float factor) { self.engine().Rescale(tensor, factor); },
          nb::arg("tensor"), nb::arg("factor"))
      .def(
          "inherit", [](PyEngine& self, uint32_t tensor, uint32_t from) { self.engine().Inherit(tensor, from); },
          nb::arg("tensor"), nb::arg("origin"), "Feedback and scale, from the tensor that it was before it moved.")
      .def(
          "retire", [](PyEngine& self, uint32_t tensor) { self.engine().Retire(tensor); }, nb::arg("tensor"))
      .def_prop_ro(
          "tensors", [](PyEngine& self) { return self.engine().tensors(); }, "How many something is held for.")
      .def(
          "register", [](PyEngine& self, std::shared_ptr<SharedBuffer> buffer) { self.engine().Register(buffer); },
          nb::arg("buffer"))
      .def("submit", &Submit, nb::arg("tensor"), nb::arg("address"), nb::arg("first"), nb::arg("last"), nb::arg("op"),
           nb::arg("root"), nb::arg("priority"), nb::arg("movable") = false, nb::arg("device") = 0,
           nb::arg("stream") = 0,
           "`device`: where the whole tensor is on the GPU, `address` is then its mirror's; what `stream` holds is "
           "waited for.")
      .def("keep", &Keep, nb::arg("tensor"), nb::arg("text"), nb::arg("width"), nb::arg("root"), nb::arg("address") = 0,
           nb::arg("bytes") = 0,
           "Has servers keep its value, under a spec's text. `address`: of the first one, on that rank.")
      .def("contribute", &Contribute, nb::arg("tensor"), nb::arg("address"), nb::arg("parts"), nb::arg("priority"),
           nb::arg("note"), "`note`: as it travels.")
      .def("contribute_filtered", &ContributeFiltered, nb::arg("tensor"), nb::arg("payloads"), nb::arg("priority"),
           nb::arg("note"), "`payloads`: (partition, address, bytes).")
      .def("tick", &Tick, nb::arg("tensor"), nb::arg("parts"), nb::arg("priority"), nb::arg("note"),
           "Contributes nothing: a clock goes by, of a tensor or of a table at its shards.")
      .def(
          "cut_off", [](PyEngine& self, uint32_t tensor) { return self.engine().CutOffParts(tensor); },
          nb::arg("tensor"), "Partitions of which servers have enough without this rank's next contribution.")
      .def("read", &Read, nb::arg("tensor"), nb::arg("address"), nb::arg("parts"), nb::arg("priority"),
           nb::arg("least"), "Of that version or a newer one, once the policy lets this rank.")
      .def("read_filtered", &ReadFiltered, nb::arg("tensor"), nb::arg("parts"), nb::arg("priority"), nb::arg("least"),
           "The same through filters: the operation's `ranges`.")
      .def("keep_table", &KeepTable, nb::arg("tensor"), nb::arg("parts"), nb::arg("text"), nb::arg("width"),
           "Has servers keep rows: the partitions are the buckets of their ids, `parts` the first of each shard.")
      .def("contribute_rows", &ContributeRows, nb::arg("tensor"), nb::arg("rows"), nb::arg("priority"), nb::arg("note"),
           "`rows`: (the first partition of a shard, list, address).")
      .def("fetch_rows", &FetchRows, nb::arg("tensor"), nb::arg("rows"), nb::arg("priority"))
      .def("fetch_filtered", &FetchFiltered, nb::arg("tensor"), nb::arg("rows"), nb::arg("priority"))
      .def("fetch_range", &FetchRange, nb::arg("tensor"), nb::arg("parts"), nb::arg("priority"), nb::arg("low"),
           nb::arg("high"), nb::arg("since"), nb::arg("most"),
           "`since`: of each part, the version beyond which rows are read. `most`: rows of each; 0: all.")
      .def("call", &Call, nb::arg("tensors"), nb::arg("text"),
           "Has servers run a function on tensors that lie together. `text`: as it travels.")
      .def("call_table", &CallTable, nb::arg("tensor"), nb::arg("parts"), nb::arg("text"),
           "The same on a table, at the shards whose first partitions those are.")
      .def("ask_saving", &AskSaving, nb::arg("requests"),
           "Asks servers to save or restore what they keep: (is a cut, tensor, partition, keys, payload) each.")
      .def("use_gpu", &PyEngine::UseGpu, nb::arg("gpu"), nb::arg("functions") = std::map<std::string, uint64_t>(),
           "Before the first submit with `device`; kernels by name, for those tensors that it encodes.")
      .def("add_kernels", &PyEngine::AddKernels, nb::arg("functions"), "More of them, for tensors declared later.")
      .def(
          "encodes_on_gpu", [](PyEngine& self, uint32_t tensor) { return self.engine().EncodesOnGpu(tensor); },
          nb::arg("tensor"), "Then its feedback should be in device memory.")
      .def("wait_on_stream", &WaitOnStream, nb::arg("operation"), nb::arg("stream"),
           "What comes later in `stream` waits for it. False: this driver can't.")
      .def(
          "give_up",
          [](PyEngine& self, const std::shared_ptr<Operation>& operation, int code, const std::string& text) {
            self.engine().GiveUp(operation, Status(static_cast<Code>(code), text));
          },
          nb::arg("operation"), nb::arg("code"), nb::arg("text"),
          "It fails on this rank, soon; nothing once it is done. Its tensor is then to be retired.")
      .def("wait", &PyEngine::Wait, nb::arg("operation"), nb::arg("seconds"),
           "True when it is done, False after `seconds`; raises the error it failed with.")
      .def(
          "fail",
          [](PyEngine& self, int code, const std::string& text) {
            self.engine().Fail(CodeFrom(static_cast<uint32_t>(code)), text);
          },
          nb::arg("code"), nb::arg("text"))
      .def(
          "go_on_without",
          [](PyEngine& self, uint32_t server, const std::string& why) { self.engine().GoOnWithout(server, why); },
          nb::arg("server"), nb::arg("why"), "A server has died: others take over what it had.")
      .def(
          "next_event",
          [](PyEngine& self, double seconds) { return BlockWithoutGil([&] { return self.events().Pop(seconds); }); },
          nb::arg("seconds"), "(code, text, fatal), or None after `seconds` or once closed.")
      .def_prop_rw(
          "credit_bytes", [](PyEngine& self) { return self.engine().credit_bytes(); },
          [](PyEngine& self, size_t bytes) { self.engine().SetCredit(bytes); }, "From the next segment on.")
      .def_prop_rw(
          "segment_bytes", [](PyEngine& self) { return self.engine().segment_bytes(); },
          [](PyEngine& self, size_t bytes) { self.engine().SetSegment(bytes); }, "From the next segment on.")
      .def("counters", &Counters)
      .def("peers", [](PyEngine& self) { return self.engine().peers(); })
      .def(
          "links", [](PyEngine& self) { return self.engine().links(); }, "How many there are, by transport.")
      .def("close", &PyEngine::Close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace byteps_like
