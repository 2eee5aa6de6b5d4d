// Payload filters of users, for servers of this process: byteps_like/store/filters/host.py runs them on addresses,
// sizes and dtype codes. It is imported when a server is asked for the first.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "byteps_like/_native/events.h"
#include "byteps_like/_native/store/with_host.h"
#include "server/store/filters/filters.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

constexpr const char* kHost = "byteps_like.store.filters.host";

using Memory = std::pair<uint64_t, size_t>;

Memory MemoryOf(std::span<const std::byte> bytes) { return {reinterpret_cast<uint64_t>(bytes.data()), bytes.size()}; }

class PyFilter final : public PayloadFilter {
 public:
  PyFilter(std::string text, bool takes_rows, bool of_values)
      : text_(std::move(text)), takes_rows_(takes_rows), of_values_(of_values) {}

  Status Check(DType dtype) const override { return Ask("check", static_cast<int>(dtype)).status(); }
  bool TakesRows() const override { return takes_rows_; }
  bool OfValues() const override { return of_values_; }
  size_t Most(DType dtype, size_t bytes) const override {
    auto most = Ask("most", static_cast<int>(dtype), bytes);
    return most.ok() ? *most : 0;
  }
  Result<size_t> Encode(DType dtype, const Draw& draw, std::span<const std::byte> in,
                        std::span<std::byte> out) const override {
    return Ask("encode", static_cast<int>(dtype), std::tuple(draw.key, draw.round, draw.rank), MemoryOf(in),
               MemoryOf(out));
  }
  Result<size_t> Decode(DType dtype, std::span<const std::byte> in, std::span<std::byte> out) const override {
    return Ask("decode", static_cast<int>(dtype), MemoryOf(in), MemoryOf(out));
  }

 private:
  template <typename... Arguments>
  Result<size_t> Ask(const char* what, const Arguments&... arguments) const {
    return WithHost<Result<size_t>>(
        kHost,
        [&](const nb::module_& host) -> Result<size_t> {
          const nb::object found = host.attr(what)(text_, arguments...);
          if (nb::isinstance<nb::int_>(found)) return nb::cast<size_t>(found);
          const auto [is_corrupt, why] = nb::cast<std::pair<bool, std::string>>(found);
          return Status(is_corrupt ? Code::kCorrupt : Code::kInvalid, why);
        },
        [&](const char* why) { return Status(Code::kInvalid, "filter " + text_ + ": " + why); });
  }

  const std::string text_;
  const bool takes_rows_, of_values_;
};

Result<FilterPointer> Find(const std::string& text) {
  return WithHost<Result<FilterPointer>>(
      kHost,
      [&](const nb::module_& host) -> Result<FilterPointer> {
        const auto kind = nb::cast<std::optional<std::pair<bool, bool>>>(host.attr("find")(text));
        return kind ? std::make_unique<const PyFilter>(text, kind->first, kind->second) : FilterPointer();
      },
      [](const char* why) { return Status(Code::kInvalid, why); });
}

}  // namespace

void BindOwnFilters() { SetFilterFinder(Find); }

}  // namespace byteps_like
