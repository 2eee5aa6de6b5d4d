#include "byteps_like/_native/communicator_py.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include "byteps_like/_native/incarnation.h"
#include "byteps_like/_native/program_py.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

constexpr double kSlice = 0.2;    // seconds between looks for signals
constexpr double kLongest = 1e8;  // seconds: beyond that a deadline would overflow

using Peers = std::vector<std::tuple<std::vector<std::string>, std::string, std::string, uint32_t>>;

Deadline After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, kLongest)));
}

std::map<std::string, uint64_t> ToDict(const LinkCounters& counters) {
  return {{"frames_sent", counters.frames_sent},   {"frames_received", counters.frames_received},
          {"bytes_sent", counters.bytes_sent},     {"bytes_received", counters.bytes_received},
          {"payload_sent", counters.payload_sent}, {"payload_received", counters.payload_received}};
}

PyCommunicator* MakeCommunicator(std::string job, nb::bytes secret, std::vector<std::string> urls,
                                 double connect_timeout, uint32_t kernel_queue_bytes, double stall_warning,
                                 double stall_timeout) {
  MeshOptions options;
  options.job = std::move(job);
  options.secret = std::string(secret.c_str(), secret.size());
  options.urls = std::move(urls);
  options.connect_timeout = connect_timeout;
  options.kernel_queue_bytes = kernel_queue_bytes;
  options.stall_warning = stall_warning;
  options.stall_timeout = stall_timeout;
  return new PyCommunicator(std::move(options));
}

void SetWorld(PyCommunicator& self, const nb::bytes& incarnation, uint32_t epoch, uint32_t rank, const Peers& peers) {
  MeshWorld world;
  world.incarnation = IncarnationOf(incarnation);
  world.epoch = epoch;
  world.rank = rank;
  for (const auto& [urls, host_id, name, number] : peers) world.peers.push_back({urls, host_id, name, number});
  if (rank >= world.peers.size()) {
    ThrowIfFailed(Status(Code::kInvalid,
                         "rank " + std::to_string(rank) + " of a world of " + std::to_string(world.peers.size())));
  }
  self.get().SetWorld(std::move(world));
}

PointOptions ToOptions(uint64_t lane, std::vector<uint32_t> ranks, uint32_t tag, double timeout, uint8_t traffic,
                       int32_t priority) {
  if (traffic > static_cast<uint8_t>(TrafficClass::kBulk)) {
    ThrowIfFailed(Status(Code::kInvalid, "there is no traffic class " + std::to_string(traffic)));
  }
  return {lane, std::move(ranks), tag, timeout, static_cast<TrafficClass>(traffic), priority};
}

std::shared_ptr<Completion> Send(PyCommunicator& self, uint64_t lane, std::vector<uint32_t> ranks, uint32_t tag,
                                 uint32_t peer, uintptr_t address, uint64_t nbytes, double timeout, uint8_t traffic,
                                 int32_t priority) {
  return self.get().point_to_point().Send(ToOptions(lane, std::move(ranks), tag, timeout, traffic, priority), peer,
                                          reinterpret_cast<const std::byte*>(address), nbytes);
}

std::shared_ptr<Completion> Receive(PyCommunicator& self, uint64_t lane, std::vector<uint32_t> ranks, uint32_t tag,
                                    int32_t peer, uintptr_t address, uint64_t nbytes, double timeout, uint8_t traffic,
                                    int32_t priority) {
  return self.get().point_to_point().Receive(ToOptions(lane, std::move(ranks), tag, timeout, traffic, priority), peer,
                                             reinterpret_cast<std::byte*>(address), nbytes);
}

std::optional<std::pair<int, std::string>> Failed(const Completion& self) {
  if (!self.done() || self.status().ok()) return std::nullopt;
  return std::pair(static_cast<int>(self.status().code()), self.status().message());
}

void BindCompletion(nb::module_& m) {
  nb::class_<Completion>(m, "Completion", "An operation in flight: a collective, a send or a receive. Thread-safe.")
      .def("done", &Completion::done)
      .def("wait", &WaitFor, nb::arg("seconds"),
           "True when it is done, False after `seconds`; raises the error it failed with.")
      .def("failed", &Failed, "(code, text) if it is done and has failed, else None.")
      .def_prop_ro("source", &Completion::source, "Of a receive from anybody, once done: the sender's group rank.")
      .def_prop_ro("bytes", &Completion::bytes, "Of a receive, once done: the bytes that came.")
      .def(
          "notify",
          [](Completion& self, PyCommunicator& communicator, uint64_t token) {
            self.NotifyTo(communicator.completed(), token);
          },
          nb::arg("communicator"), nb::arg("token"),
          "`communicator.next_completed` will return the token when this is done, at once if it is.");
}

}  // namespace

PyCommunicator::PyCommunicator(MeshOptions options) {
  Status status;
  {
    nb::gil_scoped_release release;
    auto communicator = Communicator::Listen(std::move(options));
    status = communicator.status();
    if (communicator.ok()) communicator_ = std::move(*communicator);
  }
  ThrowIfFailed(status);
}

PyCommunicator::~PyCommunicator() {
  nb::gil_scoped_release release;
  if (fork_guard_.forked()) (void)communicator_.release();
  completed_->Close();
  communicator_.reset();
}

Communicator& PyCommunicator::get() {
  fork_guard_.Check();
  return *communicator_;
}

void PyCommunicator::Close() {
  if (!fork_guard_.forked()) communicator_->Close();
  completed_->Close();
}

bool WaitFor(Completion& completion, double seconds) {
  if (!completion.done()) {
    const Deadline deadline = After(seconds);
    while (!BlockWithoutGil([&] { return completion.Wait(std::min(deadline, After(kSlice))); })) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (Clock::now() >= deadline) return false;
    }
  }
  ThrowIfFailed(completion.status());
  return true;
}

void BindCommunicator(nb::module_& m) {
  auto bound = nb::class_<PyCommunicator>(m, "Communicator", "This process's links to the other workers of its world.");
  BindCompletion(m);
  const auto point = [&](const char* name, auto function, const char* text) {
    bound.def(name, function, nb::arg("lane"), nb::arg("ranks"), nb::arg("tag"), nb::arg("peer"), nb::arg("address"),
              nb::arg("nbytes"), nb::arg("timeout"), nb::arg("traffic"), nb::arg("priority"), text);
  };
  bound
      .def(nb::new_(&MakeCommunicator), nb::arg("job"), nb::arg("secret"), nb::arg("urls"), nb::arg("connect_timeout"),
           nb::arg("kernel_queue_bytes") = kDefaultKernelQueue, nb::arg("stall_warning") = 5.0,
           nb::arg("stall_timeout") = 120.0)
      .def_prop_ro(
          "urls", [](PyCommunicator& self) { return self.get().urls(); }, "As bound; for the peers.")
      .def("set_world", &SetWorld, nb::arg("incarnation"), nb::arg("epoch"), nb::arg("rank"), nb::arg("peers"),
           "Once. Peers, by world rank and this one included, are (urls, host_id, name, member number).")
      .def(
          "allocate",
          [](PyCommunicator& self, size_t nbytes) {
            auto buffer = self.get().Allocate(nbytes);
            ThrowIfFailed(buffer.status());
            return *buffer;
          },
          nb::arg("nbytes"), "Memory that peers on this host may map.")
      .def("counters", [](PyCommunicator& self) { return ToDict(self.get().counters()); })
      .def(
          "counters_of", [](PyCommunicator& self, uint32_t peer) { return ToDict(self.get().counters(peer)); },
          nb::arg("peer"))
      .def(
          "links", [](PyCommunicator& self) { return self.get().mesh().links(); }, "How many there are, by transport.")
      .def(
          "next_completed",
          [](PyCommunicator& self, double seconds) {
            return BlockWithoutGil([&] { return self.completed()->Pop(After(seconds)); });
          },
          nb::arg("seconds"), "The token of an operation that has ended; None after `seconds` or once closed.")
      .def(
          "fail",
          [](PyCommunicator& self, int code, const std::string& text) {
            self.get().Fail(Status(CodeFrom(static_cast<uint32_t>(code)), text));
          },
          nb::arg("code"), nb::arg("text"), "Everything in flight and to come fails with this.")
      .def(
          "lose",
          [](PyCommunicator& self, uint32_t peer, int code, const std::string& text) {
            self.get().Lose(peer, Status(CodeFrom(static_cast<uint32_t>(code)), text));
          },
          nb::arg("peer"), nb::arg("code"), nb::arg("text"), "What needs this rank fails with this: it has died.")
      .def(
          "cancel_lane",
          [](PyCommunicator& self, uint64_t lane, int code, const std::string& text) {
            self.get().CancelLane(lane, Status(CodeFrom(static_cast<uint32_t>(code)), text));
          },
          nb::arg("lane"), nb::arg("code"), nb::arg("text"), "Its calls in flight fail with this, on all ranks.")
      .def("close", &PyCommunicator::Close, nb::call_guard<nb::gil_scoped_release>(),
           "Fails what is in flight and says goodbye; blocks for a second or so at most.");
  point("send", &Send, "Sends `nbytes` at `address` to the group's rank `peer`; returns its Completion at once.");
  point("receive", &Receive, "Receives into `address` from the group's rank `peer`, or from any (-1).");
  BindLaunch(bound, [](PyCommunicator& self) -> Executor& { return self.get().executor(); });
}

}  // namespace byteps_like
