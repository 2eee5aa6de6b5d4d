// Functions of users, for servers of this process: byteps_like/store/functions/host.py runs them on addresses, sizes
// and dtype codes. It is imported when a server is asked for the first.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "byteps_like/_native/events.h"
#include "byteps_like/_native/store/with_host.h"
#include "server/store/calls/command.h"
#include "server/update/function.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

constexpr const char* kHost = "byteps_like.store.functions.host";

uint64_t AddressOf(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

class PyFunction final : public ServerFunction {
 public:
  explicit PyFunction(std::string name) : name_(std::move(name)) {}

  size_t StateCount(const ValueShape& shape) const override {
    return WithHost<size_t>(
        kHost,
        [&](const nb::module_& host) {
          return nb::cast<size_t>(host.attr("state_count")(name_, shape.rows, shape.width));
        },
        [](const char*) { return size_t{0}; });
  }

  Status Run(const UpdateCall& call) const override {
    return WithHost<Status>(
        kHost,
        [&](const nb::module_& host) {
          std::vector<std::tuple<uint32_t, int64_t, int64_t, double, double>> pushes;
          for (const StorePush& one : call.pushes)
            pushes.emplace_back(one.source, one.clock, one.base, one.weight, static_cast<double>(one.loss));
          const std::optional<double> lr = std::isnan(call.lr) ? std::nullopt : std::optional(call.lr);
          const nb::object failure = host.attr("update")(
              name_, static_cast<int>(call.dtype), std::pair(call.shape.rows, call.shape.width), AddressOf(call.value),
              AddressOf(call.state), AddressOf(call.gradient), lr, call.step, pushes);
          return failure.is_none() ? Status() : Status(Code::kInvalid, nb::cast<std::string>(failure));
        },
        [&](const char* why) { return Status(Code::kInvalid, "function " + name_ + ": " + why); });
  }

 private:
  const std::string name_;
};

class PyCommand final : public Command {
 public:
  PyCommand(std::string name, std::vector<size_t> writes) : name_(std::move(name)), writes_(std::move(writes)) {}

  Status Check(size_t tensors, DType, const Figures&) const override {
    for (const size_t written : writes_)
      if (written >= tensors)
        return Status(Code::kInvalid, "function " + name_ + " changes its tensor " + std::to_string(written) +
                                          ", and is called on " + std::to_string(tensors));
    return {};
  }
  bool Writes(size_t tensor) const override { return std::ranges::find(writes_, tensor) != writes_.end(); }

  Status Run(const CommandRun& run) const override {
    std::vector<std::pair<uint64_t, bool>> places;  // and whether they are written
    for (size_t tensor = 0; tensor < run.values.size(); ++tensor) {
      std::byte* const result = run.results[tensor];
      if (result != nullptr) std::memcpy(result, run.values[tensor], run.count * SizeOf(run.dtype));
      places.emplace_back(AddressOf(result != nullptr ? result : run.values[tensor]), result != nullptr);
    }
    return WithHost<Status>(
        kHost,
        [&](const nb::module_& host) {
          const nb::object found = host.attr("command")(
              name_, static_cast<int>(run.dtype), std::pair(run.count / run.width, run.width), places, run.scalars);
          if (nb::isinstance<nb::str>(found)) return Status(Code::kInvalid, nb::cast<std::string>(found));
          for (const auto& [name, value] : nb::cast<Figures>(found)) AddTo(run.figures, name, value);
          return Status();
        },
        [&](const char* why) { return Status(Code::kInvalid, "function " + name_ + ": " + why); });
  }

 private:
  const std::string name_;
  const std::vector<size_t> writes_;
};

CommandPointer FindCommandOf(const std::string& name) {
  using Writes = std::optional<std::vector<size_t>>;
  const auto writes = WithHost<Writes>(
      kHost, [&](const nb::module_& host) { return nb::cast<Writes>(host.attr("writes_of")(name)); },
      [](const char*) { return Writes(); });
  return writes ? std::make_unique<const PyCommand>(name, *writes) : nullptr;
}

std::unique_ptr<const ServerFunction> Find(const std::string& name) {
  const bool known = WithHost<bool>(
      kHost, [&](const nb::module_& host) { return nb::cast<bool>(host.attr("has_function")(name)); },
      [](const char*) { return false; });
  return known ? std::make_unique<const PyFunction>(name) : nullptr;
}

}  // namespace

void BindFunctions(nb::module_&) {
  SetFunctionFinder(Find);
  SetCommandFinder(FindCommandOf);
}

}  // namespace byteps_like
