// byteps_like._core.Codec: a native codec on arrays of the caller (NumPy, or anything with DLPack on the CPU), for the
// routes that Python drives, tests and benchmarks. Bodies only: payload headers are the engine's. Sizes are checked
// here, since codecs trust theirs; the interpreter lock is released while they work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "byteps_like/_native/events.h"
#include "compression/registry.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Source = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatSource = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DrawTuple = std::tuple<uint64_t, uint32_t, uint32_t>;  // key, round, rank

template <typename A>
std::byte* DataOf(const A& array) {
  return static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
}

std::span<const float> SpanOf(const FloatSource& x) { return {x.data(), x.size()}; }

// Scratch of this thread, kept: 64-byte aligned.
std::byte* Workspace(uint64_t bytes) {
  thread_local std::vector<std::byte> memory;
  if (memory.size() < bytes + 64) memory.resize(bytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64;
}

class PyCodec {
 public:
  PyCodec(std::string_view spec, uint32_t world) {
    auto made = MakeCodec(spec, world);
    ThrowIfFailed(made.status());
    codec_ = *made;
  }

  const Codec& codec() const { return *codec_; }

  nb::dict Plan(uint32_t numel) const {
    const CodecPlan plan = Planned(numel);
    nb::dict found;
    found["payload"] = plan.payload;
    found["result"] = plan.result;
    found["accumulator"] = plan.accumulator;
    found["prelude"] = plan.prelude;
    found["prelude_dtype"] = static_cast<int>(plan.prelude_dtype);
    found["prelude_op"] = static_cast<int>(plan.prelude_op);
    if (plan.dense) found["dense"] = static_cast<int>(*plan.dense);
    return found;
  }

  void Prepare(FloatSource x, DrawTuple draw, Array prelude) const {
    const CodecPlan plan = Planned(x.size());
    Need("prelude", prelude.nbytes(), plan.prelude);
    std::byte* const workspace = Workspace(plan.workspace);
    const nb::gil_scoped_release release;
    codec_->Prepare(SpanOf(x), DrawOf(draw), workspace, DataOf(prelude));
  }

  // Prepare is called again for what it leaves in the workspace.
  uint32_t Encode(FloatSource x, DrawTuple draw, Source agreed, Array payload) const {
    const CodecPlan plan = Planned(x.size());
    Need("agreed", agreed.nbytes(), plan.prelude);
    NeedAtLeast("payload", payload.nbytes(), plan.payload);
    std::byte* const workspace = Workspace(plan.workspace);
    const nb::gil_scoped_release release;
    Again(SpanOf(x), DrawOf(draw), plan, workspace);
    return codec_->Encode(SpanOf(x), DrawOf(draw), DataOf(agreed), workspace, DataOf(payload));
  }

  // Encode is called again for what it leaves in the workspace; returns the payload's bytes.
  uint32_t EncodeWithResidual(FloatSource x, DrawTuple draw, Source agreed, Array payload, FloatArray residual) const {
    const CodecPlan plan = Planned(x.size());
    Need("agreed", agreed.nbytes(), plan.prelude);
    Need("residual", residual.nbytes(), x.nbytes());
    NeedAtLeast("payload", payload.nbytes(), plan.payload);
    std::byte* const workspace = Workspace(plan.workspace);
    const nb::gil_scoped_release release;
    Again(SpanOf(x), DrawOf(draw), plan, workspace);
    const uint32_t bytes = codec_->Encode(SpanOf(x), DrawOf(draw), DataOf(agreed), workspace, DataOf(payload));
    codec_->Residual(SpanOf(x), DrawOf(draw), DataOf(agreed), workspace, {DataOf(payload), bytes}, residual.data());
    return bytes;
  }

  void Decode(Source result, uint32_t count, DrawTuple draw, Source agreed, float factor, FloatArray out) const {
    const CodecPlan plan = Planned(out.size());
    Need("agreed", agreed.nbytes(), plan.prelude);
    std::byte* const workspace = Workspace(plan.workspace);
    const Status status = BlockWithoutGil([&] {
      return codec_->Decode({DataOf(result), result.nbytes()}, count, DrawOf(draw), DataOf(agreed), workspace, factor,
                            {out.data(), out.size()});
    });
    ThrowIfFailed(status);
  }

  uint32_t Clamped(FloatSource x, DrawTuple draw, Source agreed) const {
    const CodecPlan plan = Planned(x.size());
    Need("agreed", agreed.nbytes(), plan.prelude);
    std::byte* const workspace = Workspace(plan.workspace);
    const nb::gil_scoped_release release;
    return codec_->Clamped(SpanOf(x), DrawOf(draw), DataOf(agreed), workspace);
  }

  void Reset(uint32_t numel, Array accumulator) const {
    Need("accumulator", accumulator.nbytes(), Planned(numel).accumulator);
    codec_->Reset(numel, DataOf(accumulator));
  }

  void Accumulate(uint32_t numel, Source payload, Array accumulator) const {
    const CodecPlan plan = Planned(numel);
    Need("accumulator", accumulator.nbytes(), plan.accumulator);
    std::byte* const workspace = Workspace(plan.workspace);
    const Status status = BlockWithoutGil(
        [&] { return codec_->Accumulate(numel, {DataOf(payload), payload.nbytes()}, workspace, DataOf(accumulator)); });
    ThrowIfFailed(status);
  }

  uint32_t Emit(uint32_t numel, uint32_t count, DrawTuple draw, Array accumulator, Array result) const {
    const CodecPlan plan = Planned(numel);
    Need("accumulator", accumulator.nbytes(), plan.accumulator);
    NeedAtLeast("result", result.nbytes(), plan.result);
    std::byte* const workspace = Workspace(plan.workspace);
    const nb::gil_scoped_release release;
    return codec_->Emit(numel, count, DrawOf(draw), workspace, DataOf(accumulator), DataOf(result));
  }

 private:
  static Draw DrawOf(const DrawTuple& draw) { return {std::get<0>(draw), std::get<1>(draw), std::get<2>(draw)}; }

  CodecPlan Planned(size_t numel) const {
    if (numel == 0 || numel > UINT32_MAX) throw std::invalid_argument("a partition has 1 to 2^32 - 1 elements");
    return codec_->Plan(static_cast<uint32_t>(numel));
  }

  void Again(std::span<const float> x, const Draw& draw, const CodecPlan& plan, std::byte* workspace) const {
    if (plan.prelude == 0) return;
    thread_local std::vector<std::byte> own;
    own.resize(plan.prelude);
    codec_->Prepare(x, draw, workspace, own.data());
  }

  static void Need(const char* what, size_t bytes, size_t needed) {
    if (bytes != needed) Refuse(what, bytes, needed);
  }
  static void NeedAtLeast(const char* what, size_t bytes, size_t needed) {
    if (bytes < needed) Refuse(what, bytes, needed);
  }
  static void Refuse(const char* what, size_t bytes, size_t needed) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(bytes) + " bytes, " +
                                std::to_string(needed) + " are needed");
  }

  CodecPointer codec_;
};

}  // namespace

void BindCodec(nb::module_& m) {
  m.def("codec_names", &CodecNames, "Names of all native codecs, in the order of their ids");
  nb::class_<PyCodec>(m, "Codec")
      .def(nb::init<std::string_view, uint32_t>(), nb::arg("spec"), nb::arg("world"))
      .def_prop_ro("spec", [](const PyCodec& self) { return self.codec().spec(); })
      .def_prop_ro("id", [](const PyCodec& self) { return self.codec().id(); })
      .def_prop_ro("trait", [](const PyCodec& self) { return static_cast<int>(self.codec().trait()); })
      .def("plan", &PyCodec::Plan, nb::arg("numel"))
      .def("prepare", &PyCodec::Prepare, nb::arg("x"), nb::arg("draw"), nb::arg("prelude"))
      .def("encode", &PyCodec::Encode, nb::arg("x"), nb::arg("draw"), nb::arg("agreed"), nb::arg("payload"))
      .def("encode_with_residual", &PyCodec::EncodeWithResidual, nb::arg("x"), nb::arg("draw"), nb::arg("agreed"),
           nb::arg("payload"), nb::arg("residual"))
      .def("decode", &PyCodec::Decode, nb::arg("result"), nb::arg("count"), nb::arg("draw"), nb::arg("agreed"),
           nb::arg("factor"), nb::arg("out"))
      .def("clamped", &PyCodec::Clamped, nb::arg("x"), nb::arg("draw"), nb::arg("agreed"))
      .def("reset", &PyCodec::Reset, nb::arg("numel"), nb::arg("accumulator"))
      .def("accumulate", &PyCodec::Accumulate, nb::arg("numel"), nb::arg("payload"), nb::arg("accumulator"))
      .def("emit", &PyCodec::Emit, nb::arg("numel"), nb::arg("count"), nb::arg("draw"), nb::arg("accumulator"),
           nb::arg("result"));
}

}  // namespace byteps_like
