// byteps_like._core.Gpu: a device by CUDA's driver, for the torch layer and tests. Streams and addresses are integers,
// so that they may be torch's or CuPy's as well as ours.
#include "byteps_like/_native/gpu/gpu_py.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "byteps_like/_native/events.h"
#include "csrc/gpu/memory.h"
#include "csrc/gpu/module.h"
#include "csrc/gpu/stream.h"
#include "csrc/gpu/stream_launcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace byteps_like {
namespace {

using PyPinned = Freed<std::unique_ptr<PinnedMemory>>;
using PyMemory = Freed<std::unique_ptr<GpuMemory>>;
using PyGate = Freed<std::unique_ptr<GpuGate>>;
using PyStream = Freed<std::unique_ptr<GpuStream>>;
using PyEvent = Freed<std::unique_ptr<GpuEvent>>;
using PyModule = Freed<std::unique_ptr<GpuModule>>;

cuda::Stream StreamAt(uint64_t handle) { return reinterpret_cast<cuda::Stream>(handle); }

// Calls without the GIL, for the driver may block: a stream's queue is full, or memory is to be freed.
template <typename F>
auto Call(F function) {
  auto result = BlockWithoutGil(function);
  ThrowIfFailed(result.status());
  return std::move(*result);
}
template <typename F>
void Do(F function) {
  ThrowIfFailed(BlockWithoutGil(function));
}
template <typename Py, typename F>
Py* Make(F function) {
  return new Py(Call(function));
}

std::vector<std::tuple<int, std::string, std::string, std::string, uint64_t>> Devices(const std::string& path) {
  const auto found = Call([&]() -> Result<std::vector<GpuInfo>> {
    auto driver = Driver::Open(path);
    if (!driver.ok()) return driver.status();
    return ListGpus(**driver);
  });
  std::vector<std::tuple<int, std::string, std::string, std::string, uint64_t>> rows;
  for (const GpuInfo& one : found) rows.emplace_back(one.ordinal, one.name, one.pci, one.uuid, one.bytes);
  return rows;
}

PyGpu* Open(int ordinal, const std::string& path, int connections) {
  auto gpu = Call([&]() -> Result<std::shared_ptr<Gpu>> {
    auto driver = Driver::Open(path);
    if (!driver.ok()) return driver.status();
    return Gpu::Open(*driver, ordinal, connections);
  });
  auto gates = Call([&] { return GpuGates::Create(gpu); });
  return new PyGpu{Freed(std::move(gpu)), Freed(std::move(gates))};
}

void Copy(const PyGpu& self, uint64_t target, uint64_t source, size_t nbytes, uint64_t stream) {
  const Gpu& gpu = *self.gpu;
  Do([&] {
    const CurrentContext current(gpu);
    if (!current.status().ok()) return current.status();
    return gpu.Check(gpu.api().Memcpy(target, source, nbytes, StreamAt(stream)), "cuMemcpyAsync");
  });
}

void Fill(const PyGpu& self, uint64_t target, uint8_t value, size_t nbytes, uint64_t stream) {
  const Gpu& gpu = *self.gpu;
  Do([&] {
    const CurrentContext current(gpu);
    if (!current.status().ok()) return current.status();
    return gpu.Check(gpu.api().MemsetBytes(target, value, nbytes, StreamAt(stream)), "cuMemsetD8Async");
  });
}

void Launch(const PyGpu& self, uint64_t function, uint32_t grid, uint32_t block, uint32_t shared, uint64_t stream,
            const std::vector<nb::bytes>& arguments) {
  std::vector<KernelArgument> values;
  for (const nb::bytes& one : arguments) values.push_back({one.c_str(), static_cast<uint32_t>(one.size())});
  Do([&] {
    const CurrentContext current(*self.gpu);
    if (!current.status().ok()) return current.status();
    return LaunchOn(*self.gpu, StreamAt(stream), function, {grid, block, shared}, values);
  });
}

PyPinned* PinAddress(const PyGpu& self, uintptr_t address, size_t nbytes) {
  return Make<PyPinned>(
      [&] { return PinnedMemory::Lock(self.gpu.held(), reinterpret_cast<std::byte*>(address), nbytes); });
}

void BindDevice(nb::module_& m) {
  m.def("gpu_devices", &Devices, "driver"_a = kCudaLibrary,
        "(ordinal, name, PCI address, uuid in hexadecimal, bytes of memory) of each; DeviceError without a driver.");
  nb::class_<PyGpu>(m, "Gpu", "A device in its primary context, which is torch's and CuPy's too.")
      .def(nb::new_(&Open), "ordinal"_a, "driver"_a = kCudaLibrary, "connections"_a = kDefaultConnections,
           "`connections`: queues of the hardware that CUDA has for this process. DeviceError.")
      .def_prop_ro("ordinal", [](const PyGpu& self) { return self.gpu->info().ordinal; })
      .def_prop_ro("name", [](const PyGpu& self) { return self.gpu->info().name; })
      .def_prop_ro("pci", [](const PyGpu& self) { return self.gpu->info().pci; })
      .def_prop_ro("uuid", [](const PyGpu& self) { return self.gpu->info().uuid; })
      .def_prop_ro("driver_version", [](const PyGpu& self) { return self.gpu->driver().version(); })
      .def_prop_ro("waits_by_value", [](const PyGpu& self) { return self.gpu->WhyNoWaits().empty(); })
      .def_prop_ro("why_no_waits", [](const PyGpu& self) { return self.gpu->WhyNoWaits(); })
      .def_prop_ro("most_shared", [](const PyGpu& self) { return self.gpu->most_shared(); })
      .def_prop_ro("allocated", [](const PyGpu& self) { return self.gpu->held(); })
      .def(
          "memory",
          [](const PyGpu& self) {
            const auto [free, all] = Call([&] { return self.gpu->Memory(); });
            return std::make_tuple(free, all);
          },
          "Bytes free, and all.")
      .def(
          "pin",
          [](const PyGpu& self, std::shared_ptr<SharedBuffer> buffer) {
            return Make<PyPinned>([&] { return PinnedMemory::Lock(self.gpu.held(), std::move(buffer)); });
          },
          "buffer"_a, "Page-locks it until what this returns is dropped. Once.")
      .def(
          "ignore_captures", [](const PyGpu& self) { self.gpu->IgnoreCaptures(); },
          "From now on what the calling thread asks of CUDA leaves a graph whole that another thread captures.")
      .def("pin_address", &PinAddress, "address"_a, "nbytes"_a, "The same of memory that the caller keeps alive.")
      .def(
          "allocate",
          [](const PyGpu& self, size_t nbytes) {
            return Make<PyMemory>([&] { return GpuMemory::Allocate(self.gpu.held(), nbytes); });
          },
          "nbytes"_a)
      .def(
          "export",
          [](const PyGpu& self, uint64_t address) {
            const std::string text = Call([&] { return ExportMemory(*self.gpu, address); });
            return nb::bytes(text.data(), text.size());
          },
          "address"_a, "Names device memory of this process to another of this host: bytes for its `open`.")
      .def(
          "open",
          [](const PyGpu& self, nb::bytes exported) {
            const std::string_view text(exported.c_str(), exported.size());
            return Make<PyMemory>([&] { return GpuMemory::Open(self.gpu.held(), text); });
          },
          "exported"_a)
      .def("gate", [](const PyGpu& self) { return Make<PyGate>([&] { return self.gates->Make(); }); })
      .def("stream",
           [](const PyGpu& self) { return Make<PyStream>([&] { return GpuStream::Create(self.gpu.held()); }); })
      .def("event", [](const PyGpu& self) { return Make<PyEvent>([&] { return GpuEvent::Create(self.gpu.held()); }); })
      .def(
          "load",
          [](const PyGpu& self, const std::string& path) {
            return Make<PyModule>([&] { return GpuModule::Load(self.gpu.held(), path); });
          },
          "path"_a, "A file of cubin, fatbin or PTX.")
      .def("copy", &Copy, "target"_a, "source"_a, "nbytes"_a, "stream"_a,
           "Queues a copy, to or from the device; memory of the host is page-locked.")
      .def("fill", &Fill, "target"_a, "value"_a, "nbytes"_a, "stream"_a, "Queues that many bytes of one value.")
      .def("launch", &Launch, "function"_a, "grid"_a, "block"_a, "shared"_a, "stream"_a, "arguments"_a,
           "Queues a kernel; `arguments` are the bytes of each, of exactly its type.");
}

void BindMemory(nb::module_& m) {
  nb::class_<PyPinned>(m, "Pinned", "Page-locked memory of the host.")
      .def_prop_ro("address", [](const PyPinned& self) { return reinterpret_cast<uintptr_t>(self->data()); })
      .def_prop_ro("nbytes", [](const PyPinned& self) { return self->bytes(); });
  nb::class_<PyMemory>(m, "Memory", "Memory of a device; given back when dropped.")
      .def_prop_ro("address", [](const PyMemory& self) { return self->address(); })
      .def_prop_ro("nbytes", [](const PyMemory& self) { return self->bytes(); });
  nb::class_<PyModule>(m, "Module", "Kernels, loaded.")
      .def(
          "function",
          [](const PyModule& self, const std::string& name) { return Call([&] { return self->Function(name); }); },
          "name"_a);
}

void BindOrder(nb::module_& m) {
  nb::class_<PyGate>(m, "Gate", "What streams wait for until it is opened; one that is dropped opens first.")
      .def(
          "block",
          [](const PyGate& self, uint64_t stream) { return Call([&] { return self->Block(StreamAt(stream)); }); },
          "stream"_a, "What comes later in it waits. False: this driver can't.")
      .def("open", [](const PyGate& self) { self->Open(); })
      .def_prop_ro("is_open", [](const PyGate& self) { return self->is_open(); });
  nb::class_<PyStream>(m, "Stream", "Work in order, more urgent than the framework's.")
      .def_prop_ro("handle", [](const PyStream& self) { return reinterpret_cast<uint64_t>(self->handle()); })
      .def("done", [](const PyStream& self) { return Call([&] { return self->Done(); }); })
      .def("synchronize", [](const PyStream& self) { Do([&] { return self->Synchronize(); }); });
  nb::class_<PyEvent>(m, "Event", "A point in a stream.")
      .def_prop_ro("handle", [](const PyEvent& self) { return reinterpret_cast<uint64_t>(self->handle()); })
      .def(
          "record", [](const PyEvent& self, uint64_t stream) { Do([&] { return self->Record(StreamAt(stream)); }); },
          "stream"_a)
      .def(
          "block", [](const PyEvent& self, uint64_t stream) { Do([&] { return self->Block(StreamAt(stream)); }); },
          "stream"_a, "What comes later in it waits for what was recorded last.")
      .def("done", [](const PyEvent& self) { return Call([&] { return self->Done(); }); })
      .def("synchronize", [](const PyEvent& self) { Do([&] { return self->Synchronize(); }); });
}

}  // namespace

void BindGpu(nb::module_& m) {
  BindDevice(m);
  BindMemory(m);
  BindOrder(m);
}

}  // namespace byteps_like
