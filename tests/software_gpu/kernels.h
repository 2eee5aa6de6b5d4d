// Behind the lines of a kernel's file (CMakeLists.txt makes the file that joins them): its rows in the table.
#pragma once

#include <cstring>
#include <tuple>
#include <utility>

#include "tests/software_gpu/launch.h"

namespace software_gpu {

void Register(const Kernel* kernel);

template <typename T>
T Argument(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

template <auto kFunction>
struct Caller;
template <typename... A, void (*kFunction)(A...)>
struct Caller<kFunction> {
  static constexpr uint32_t kBytes[sizeof...(A) + 1] = {sizeof(A)..., 0};

  static void Run(void* const* arguments) { Run(arguments, std::index_sequence_for<A...>()); }
  template <size_t... I>
  static void Run(void* const* arguments, std::index_sequence<I...>) {
    kFunction(Argument<A>(arguments[I])...);
  }
  static Kernel Row(const char* name, uint32_t threads) {
    return {name, threads, {kBytes, sizeof...(A)}, static_cast<void (*)(void* const*)>(Run)};
  }
};

}  // namespace software_gpu

#define SOFTWARE_KERNEL(name, threads)                                                       \
  namespace {                                                                                \
  const software_gpu::Kernel name##_row = software_gpu::Caller<name>::Row(#name, threads);   \
  [[maybe_unused]] const bool name##_is_known = (software_gpu::Register(&name##_row), true); \
  }
