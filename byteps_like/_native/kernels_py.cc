// byteps_like._core.kernels: the SIMD kernels on NumPy arrays (or anything with DLPack on the CPU), for tests,
// benchmarks and `byteps-like doctor`. 16-bit and 8-bit floats are the bytes of any type. Sizes are checked here, since
// the kernels don't; the interpreter lock is released for all but small calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/direct_loop.h"
#include "csrc/kernels/kernels.h"
#include "csrc/kernels/stream_rate.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Source = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

// Releases the lock where the work takes longer than that does.
class MaybeRelease {
 public:
  explicit MaybeRelease(size_t bytes) {
    constexpr size_t kBig = size_t{32} << 10;
    if (bytes >= kBig) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

DType ToDType(int code) {
  if (code < 0 || code >= kDTypeCount) throw std::invalid_argument("no dtype has code " + std::to_string(code));
  return static_cast<DType>(code);
}

DType ToFloat(int code) {
  const DType dtype = ToDType(code);
  if (!IsFloat(dtype)) throw std::invalid_argument("cast: dtype " + std::to_string(code) + " is no float");
  return dtype;
}

Op ToOp(int code, int dtype) {
  if (code < 0 || code >= kOpCount) throw std::invalid_argument("no operation has code " + std::to_string(code));
  const Op op = static_cast<Op>(code);
  if (Supports(op, ToDType(dtype))) return op;
  throw std::invalid_argument(std::string("there is no ") + NameOf(op) + " of " + NameOf(ToDType(dtype)));
}

size_t CountOf(size_t bytes, DType dtype) {
  if (bytes % SizeOf(dtype) != 0) {
    throw std::invalid_argument(std::to_string(bytes) + " bytes are no whole number of elements of " +
                                std::to_string(SizeOf(dtype)));
  }
  return bytes / SizeOf(dtype);
}

void NeedBytes(const char* what, size_t bytes, size_t needed) {
  if (bytes == needed) return;
  throw std::invalid_argument(std::string(what) + " has " + std::to_string(bytes) + " bytes, " +
                              std::to_string(needed) + " are needed");
}

void NeedDivisor(uint32_t divisor) {
  if (divisor == 0) throw std::invalid_argument("divisor must be at least 1");
}

void Reduce(int op, int dtype, Array a, Source b) {
  const size_t count = CountOf(a.nbytes(), ToDType(dtype));
  NeedBytes("b", b.nbytes(), a.nbytes());
  const MaybeRelease release(a.nbytes());
  kernels::Reduce(ToOp(op, dtype), ToDType(dtype), a.data(), b.data(), count);
}

void Widen(int dtype, Array accumulator, Source source) {
  const size_t count = CountOf(source.nbytes(), ToDType(dtype));
  NeedBytes("accumulator", accumulator.nbytes(), count * SizeOf(AccumulatorOf(ToDType(dtype))));
  const MaybeRelease release(source.nbytes());
  kernels::Widen(ToDType(dtype), accumulator.data(), source.data(), count);
}

void Accumulate(int op, int dtype, Array accumulator, Source source) {
  const size_t count = CountOf(source.nbytes(), ToDType(dtype));
  NeedBytes("accumulator", accumulator.nbytes(), count * SizeOf(AccumulatorOf(ToDType(dtype))));
  const MaybeRelease release(source.nbytes());
  kernels::Accumulate(ToOp(op, dtype), ToDType(dtype), accumulator.data(), source.data(), count);
}

void Finalize(int dtype, Array destination, Source accumulator, uint32_t divisor) {
  const size_t count = CountOf(accumulator.nbytes(), AccumulatorOf(ToDType(dtype)));
  NeedDivisor(divisor);
  if (destination.data() != accumulator.data()) {
    NeedBytes("destination", destination.nbytes(), count * SizeOf(ToDType(dtype)));
  }
  const MaybeRelease release(accumulator.nbytes());
  kernels::Finalize(ToDType(dtype), destination.data(), accumulator.data(), count, divisor);
}

void ReduceMany(int op, int dtype, std::vector<Array> destinations, std::vector<Source> sources, uint32_t divisor) {
  NeedDivisor(divisor);
  if (destinations.empty() || sources.empty()) throw std::invalid_argument("no destinations or no sources");
  const size_t bytes = sources[0].nbytes();
  const size_t count = CountOf(bytes, ToDType(dtype));
  std::vector<void*> to;
  std::vector<const void*> from;
  for (const Array& destination : destinations) {
    NeedBytes("a destination", destination.nbytes(), bytes);
    to.push_back(destination.data());
  }
  for (const Source& source : sources) {
    NeedBytes("a source", source.nbytes(), bytes);
    from.push_back(source.data());
  }
  const MaybeRelease release(bytes);
  kernels::ReduceMany(ToOp(op, dtype), ToDType(dtype), to, from, count, divisor);
}

void Scale(int dtype, Array data, double factor) {
  if (ToDType(dtype) == DType::kBool) throw std::invalid_argument("a bool is not scaled");
  const size_t count = CountOf(data.nbytes(), ToDType(dtype));
  const MaybeRelease release(data.nbytes());
  kernels::Scale(ToDType(dtype), data.data(), count, factor);
}

void Cast(int from, int to, Array destination, Source source) {
  const size_t count = CountOf(source.nbytes(), ToFloat(from));
  NeedBytes("destination", destination.nbytes(), count * SizeOf(ToFloat(to)));
  const MaybeRelease release(source.nbytes());
  kernels::Cast(ToFloat(from), ToFloat(to), destination.data(), source.data(), count);
}

// Any contiguous object with the buffer protocol: bytes too, which are no array.
uint32_t Crc32c(nb::handle data, uint32_t seed) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  {
    const MaybeRelease release(static_cast<size_t>(view.len));
    seed = kernels::Crc32c(seed, view.buf, static_cast<size_t>(view.len));
  }
  PyBuffer_Release(&view);
  return seed;
}

void PlainAdd(nb::ndarray<float, nb::c_contig, nb::device::cpu> a,
              nb::ndarray<const float, nb::c_contig, nb::device::cpu> b) {
  NeedBytes("b", b.nbytes(), a.nbytes());
  const MaybeRelease release(a.nbytes());
  kernels::PlainAdd(a.data(), b.data(), a.size());
}

uint32_t PlainOr(nb::ndarray<const float, nb::c_contig, nb::device::cpu> a) {
  const MaybeRelease release(a.nbytes());
  return kernels::PlainOr(a.data(), a.size());
}

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Job = std::pair<std::vector<Floats>, std::vector<Floats>>;

void RunDirect(nb::ndarray<uint64_t, nb::c_contig, nb::device::cpu> counters, uint32_t rank, uint32_t size,
               const std::vector<Job>& jobs, uint32_t iterations, bool yields) {
  if (rank >= size || counters.size() < 8 * size_t{size})
    throw std::invalid_argument("counters: 8 words for each rank");
  std::vector<kernels::DirectJob> direct;
  for (const auto& [destinations, sources] : jobs) {
    if (sources.empty()) throw std::invalid_argument("a job without sources");
    kernels::DirectJob job{{}, {}, sources[0].size()};
    for (const Floats& to : destinations) {
      NeedBytes("a destination", to.nbytes(), sources[0].nbytes());
      job.destinations.push_back(to.data());
    }
    for (const Floats& from : sources) {
      NeedBytes("a source", from.nbytes(), sources[0].nbytes());
      job.sources.push_back(from.data());
    }
    direct.push_back(std::move(job));
  }
  const nb::gil_scoped_release release;
  kernels::RunDirect(counters.data(), rank, size, direct, iterations, yields);
}

}  // namespace

void BindKernels(nb::module_& m) {
  using namespace nb::literals;
  nb::module_ k = m.def_submodule("kernels", "SIMD kernels over arrays; dtype and op are codes of byteps_like.dtypes.");
  k.def("instruction_set", [] { return std::string(kernels::InstructionSet()); }, "The one in use.");
  k.def(
      "select_instruction_set", [](const std::string& name) { return kernels::SelectInstructionSet(name); }, "name"_a,
      "Forces 'avx512', 'avx2', 'neon' or 'scalar' for the process; False if this CPU lacks it. Not thread-safe.");
  k.def("reduce", Reduce, "op"_a, "dtype"_a, "a"_a, "b"_a, "a = a op b, in place.");
  k.def("widen", Widen, "dtype"_a, "accumulator"_a, "source"_a,
        "accumulator = source (16-bit and 8-bit floats: as fp32).");
  k.def("accumulate", Accumulate, "op"_a, "dtype"_a, "accumulator"_a, "source"_a,
        "accumulator = accumulator op source.");
  k.def("finalize", Finalize, "dtype"_a, "destination"_a, "accumulator"_a, "divisor"_a = 1,
        "destination = accumulator / divisor, rounded once; may be the accumulator itself.");
  k.def("reduce_many", ReduceMany, "op"_a, "dtype"_a, "destinations"_a, "sources"_a, "divisor"_a = 1,
        "Every destination = reduction of all sources / divisor, in one pass; destinations may be sources.");
  k.def("scale", Scale, "dtype"_a, "data"_a, "factor"_a, "data *= factor, in place.");
  k.def("cast", Cast, "source_dtype"_a, "destination_dtype"_a, "destination"_a, "source"_a, "Between floating types.");
  k.def("crc32c", Crc32c, "data"_a, "seed"_a = 0, "CRC32C of a buffer, continuing from seed.");
  k.def("plain_add", PlainAdd, "a"_a, "b"_a, "a += b in fp32 by a plain loop: what the kernels are compared with.");
  k.def("plain_or", PlainOr, "a"_a, "The bits of all fp32 or'ed by a plain loop: what reading alone costs.");
  k.def("run_direct", RunDirect, "counters"_a, "rank"_a, "size"_a, "jobs"_a, "iterations"_a, "yields"_a,
        "This rank's fp32 jobs (destinations, sources) in step with the other ranks: the limit of a collective.");
  k.def("stream_rate", kernels::StreamRate, "nbytes"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Median bytes per second of plain_add on fresh arrays (two reads and a write), measured for about `seconds`.");
}

}  // namespace byteps_like
