// byteps_like._core.Filters: the payload filters of a server, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "byteps_like/_native/events.h"
#include "csrc/wire/frame.h"
#include "server/store/filters/filters.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

DType TypeOf(int code) {
  if (code < 0 || code >= kDTypeCount) throw std::invalid_argument("there is no dtype of this code");
  return static_cast<DType>(code);
}

class PyFilters {
 public:
  explicit PyFilters(std::string_view texts) {
    auto made = Filters::Parse(texts);
    ThrowIfFailed(made.status());
    filters_ = std::move(*made);
  }

  void Check(int dtype) const { ThrowIfFailed(filters_->Check(TypeOf(dtype))); }
  bool Fits(int dtype, size_t rows, size_t total) const { return filters_->Fits(TypeOf(dtype), rows, total); }

  nb::bytes Encode(int dtype, uint64_t key, uint32_t round, uint32_t rank, nb::bytes rows) {
    const auto in = Copied(rows);
    return Bytes(filters_->Encode(TypeOf(dtype), {key, round, rank}, {in.data(), rows.size()}, kMaxPartition, memory_));
  }

  nb::bytes Decode(int dtype, nb::bytes payload, size_t rows) {
    return Bytes(filters_->Decode(TypeOf(dtype), {Copied(payload), payload.size()}, rows, memory_));
  }

 private:
  ShardBuffer Copied(const nb::bytes& bytes) {
    ShardBuffer buffer = memory_.Take(bytes.size());
    if (bytes.size() != 0) std::memcpy(buffer.data(), bytes.c_str(), bytes.size());
    return buffer;
  }
  static nb::bytes Bytes(Result<Filtered> made) {
    ThrowIfFailed(made.status());
    return nb::bytes(reinterpret_cast<const char*>(made->buffer.data()), made->bytes);
  }

  std::atomic<uint64_t> held_ = 0;
  ShardMemory memory_{"a test", 0, held_};
  std::shared_ptr<const Filters> filters_;
};

}  // namespace

void BindFilters(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PyFilters>(m, "Filters", "What servers do with payloads; `texts`: canonical, with spaces between.")
      .def(nb::init<std::string_view>(), "texts"_a)
      .def("check", &PyFilters::Check, "dtype"_a)
      .def("fits", &PyFilters::Fits, "dtype"_a, "rows"_a, "total"_a)
      .def("encode", &PyFilters::Encode, "dtype"_a, "key"_a, "round"_a, "rank"_a, "rows"_a)
      .def("decode", &PyFilters::Decode, "dtype"_a, "payload"_a, "rows"_a);
}

}  // namespace byteps_like
