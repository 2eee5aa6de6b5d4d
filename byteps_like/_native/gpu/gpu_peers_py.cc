// byteps_like._core.GpuPeers: reductions among the GPUs of a host's ranks, by memory that they map of each other.
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "byteps_like/_native/events.h"
#include "byteps_like/_native/gpu/gpu_py.h"
#include "csrc/gpu/peers/peers_group.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace byteps_like {
namespace {

class PyPeers {
 public:
  explicit PyPeers(std::unique_ptr<GpuPeers> peers) : peers_(std::move(peers)) {}
  ~PyPeers() {
    nb::gil_scoped_release release;
    if (guard_.forked()) (void)peers_.release();  // its watch is the parent's
    peers_.reset();
  }

  template <typename F>
  void Do(F call) {
    guard_.Check();
    ThrowIfFailed(BlockWithoutGil([&] { return call(*peers_); }));
  }

 private:
  std::unique_ptr<GpuPeers> peers_;
  const ForkGuard guard_;
};

PyPeers* Make(const PyGpu& gpu, const std::map<std::string, uint64_t>& functions, std::shared_ptr<SharedBuffer> page,
              uint32_t rank, std::vector<int> pids, size_t stage_bytes, double timeout) {
  const KernelTable kernels(functions.begin(), functions.end());
  auto made = BlockWithoutGil([&] {
    return GpuPeers::Create(gpu.gpu.held(), kernels, std::move(page), {rank, std::move(pids), stage_bytes, timeout});
  });
  ThrowIfFailed(made.status());
  return new PyPeers(std::move(*made));
}

nb::bytes Export(PyPeers& self) {
  std::string text;
  self.Do([&](GpuPeers& peers) {
    auto found = peers.Export();
    if (found.ok()) text = std::move(*found);
    return found.status();
  });
  return nb::bytes(text.data(), text.size());
}

void Join(PyPeers& self, const std::vector<nb::bytes>& exported) {
  std::vector<std::string> texts;
  for (const nb::bytes& one : exported) texts.emplace_back(one.c_str(), one.size());
  self.Do([&](GpuPeers& peers) { return peers.Join(texts); });
}

}  // namespace

void BindGpuPeers(nb::module_& m) {
  nb::class_<PyPeers>(m, "GpuPeers",
                      "Reduce-scatter and all-gather among the GPUs of the 2 to 8 ranks of a host, on streams. `page`"
                      " (4096 bytes) is shared by them; `pids` of all, by rank. Raises DeviceError.")
      .def(nb::new_(&Make), "gpu"_a, "functions"_a, "page"_a, "rank"_a, "pids"_a, "stage_bytes"_a, "timeout"_a)
      .def("export", &Export, "This rank's stage, for the others' `join`.")
      .def("join", &Join, "exported"_a, "The stages of all, by rank. Before the first call, once.")
      .def(
          "reduce_scatter",
          [](PyPeers& self, uint64_t stream, uint64_t whole, uint64_t own, uint64_t numel, int dtype,
             uint32_t divisor) {
            self.Do([&](GpuPeers& peers) {
              return peers.ReduceScatter(reinterpret_cast<cuda::Stream>(stream),
                                         {whole, own, numel, static_cast<DType>(dtype)}, divisor);
            });
          },
          "stream"_a, "whole"_a, "own"_a, "numel"_a, "dtype"_a, "divisor"_a = 1,
          "Rank r's slice, ceil(numel / ranks) elements or what is left from r times as many on, to `own`: summed over"
          " the ranks, divided. fp32, fp16, bf16.")
      .def(
          "all_gather",
          [](PyPeers& self, uint64_t stream, uint64_t whole, uint64_t own, uint64_t numel, int dtype) {
            self.Do([&](GpuPeers& peers) {
              return peers.AllGather(reinterpret_cast<cuda::Stream>(stream),
                                     {whole, own, numel, static_cast<DType>(dtype)});
            });
          },
          "stream"_a, "whole"_a, "own"_a, "numel"_a, "dtype"_a, "The slices of all, to `whole`.")
      .def(
          "check", [](PyPeers& self) { self.Do([](GpuPeers& peers) { return peers.status(); }); },
          "Raises what it failed with: PeerLostError, DeadlineError, ShutdownError, DeviceError.")
      .def(
          "fail",
          [](PyPeers& self, int code, const std::string& text) {
            self.Do([&](GpuPeers& peers) {
              peers.Fail(Status(CodeFrom(static_cast<uint32_t>(code)), text));
              return Status();
            });
          },
          "code"_a, "text"_a, "No rank waits for this one any more, nor this one for any.");
}

}  // namespace byteps_like
