// byteps_like._core.GpuCodec: what a codec would launch on a device, as plain values for byteps_like/cuda/recipes.py to
// launch: for tests and benchmarks. The engine launches by itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "byteps_like/_native/events.h"
#include "compression/gpu/registry.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace byteps_like {
namespace {

using DrawTuple = std::tuple<uint64_t, uint32_t, uint32_t>;  // key, round, rank

// Keeps what is launched. A fill is a launch of kernel 0 with the address, the byte and the count; a copy has no byte.
class Recorder : public Launcher {
 public:
  explicit Recorder(uint32_t most_shared) : most_shared_(most_shared) {}
  uint32_t most_shared() const override { return most_shared_; }

  Status Fill(DevicePointer to, uint8_t value, size_t bytes) override {
    launches.append(nb::make_tuple("fill", to, value, bytes));
    return {};
  }
  Status Copy(DevicePointer to, DevicePointer from, size_t bytes) override {
    launches.append(nb::make_tuple("copy", to, from, bytes));
    return {};
  }

  nb::list launches;

 private:
  Status LaunchPacked(KernelHandle kernel, const LaunchShape& shape,
                      std::span<const KernelArgument> arguments) override {
    nb::list packed;
    for (const KernelArgument& argument : arguments) packed.append(nb::bytes(argument.value, argument.bytes));
    launches.append(
        nb::make_tuple("launch", kernel, nb::make_tuple(shape.blocks, shape.threads, shape.shared), packed));
    return {};
  }

  const uint32_t most_shared_;
};

class PyGpuCodec {
 public:
  PyGpuCodec(std::string_view spec, uint32_t world, const std::map<std::string, uint64_t>& handles,
             uint32_t most_shared)
      : most_shared_(most_shared) {
    auto codec = MakeCodec(spec, world);
    ThrowIfFailed(codec.status());
    auto twin = MakeGpuCodec(*codec, KernelTable(handles.begin(), handles.end()));
    ThrowIfFailed(twin.status());
    codec_ = *twin;
  }

  const GpuCodec& codec() const { return *codec_; }

  template <typename F>
  nb::list Record(F call) const {
    Recorder recorder(most_shared_);
    ThrowIfFailed(call(recorder));
    return recorder.launches;
  }

 private:
  GpuCodecPointer codec_;
  uint32_t most_shared_;
};

}  // namespace

void BindGpuCodec(nb::module_& m) {
  m.def("gpu_codec_names", &GpuCodecNames, "Names of the codecs that have a twin on GPUs");
  m.def("gpu_source", &GpuSource, "name"_a,
        "The .cu file, without its ending, of a codec's kernels; '' if it has none");
  nb::class_<GpuRound>(m, "GpuRound", "One round of one partition: device addresses, 0 for what is not there")
      .def(
          "__init__",
          [](GpuRound* round, uint64_t x, uint32_t numel, DrawTuple draw, uint64_t agreed, uint64_t workspace,
             uint64_t report) {
            const auto [key, number, rank] = draw;
            new (round) GpuRound{x, numel, {key, number, rank}, agreed, workspace, report};
          },
          "x"_a, "numel"_a, "draw"_a, "agreed"_a = 0, "workspace"_a = 0, "report"_a = 0);
  nb::class_<PyGpuCodec>(m, "GpuCodec")
      .def(nb::init<std::string_view, uint32_t, const std::map<std::string, uint64_t>&, uint32_t>(), "spec"_a,
           "world"_a, "handles"_a, "most_shared"_a = 48 * 1024,
           "Raises InvalidArgumentError for a codec that has no twin")
      .def(
          "workspace", [](const PyGpuCodec& self, uint32_t numel) { return self.codec().Workspace(numel); }, "numel"_a)
      .def_prop_ro("varies", [](const PyGpuCodec& self) { return self.codec().varies(); })
      .def(
          "prepare",
          [](const PyGpuCodec& self, const GpuRound& round, uint64_t prelude) {
            return self.Record([&](Launcher& launcher) { return self.codec().Prepare(launcher, round, prelude); });
          },
          "round"_a, "prelude"_a)
      .def(
          "encode",
          [](const PyGpuCodec& self, const GpuRound& round, uint64_t payload) {
            return self.Record([&](Launcher& launcher) { return self.codec().Encode(launcher, round, payload); });
          },
          "round"_a, "payload"_a)
      .def(
          "residual",
          [](const PyGpuCodec& self, const GpuRound& round, uint64_t payload, uint64_t residual) {
            return self.Record(
                [&](Launcher& launcher) { return self.codec().Residual(launcher, round, payload, residual); });
          },
          "round"_a, "payload"_a, "residual"_a)
      .def(
          "decode",
          [](const PyGpuCodec& self, const GpuRound& round, uint64_t result, uint32_t bytes, uint32_t count,
             float factor) {
            return self.Record(
                [&](Launcher& launcher) { return self.codec().Decode(launcher, round, result, bytes, count, factor); });
          },
          "round"_a, "result"_a, "bytes"_a, "count"_a, "factor"_a = 1.0f);
}

}  // namespace byteps_like
