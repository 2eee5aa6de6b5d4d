// The device as Python holds it; the engine's binding takes it from there.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "csrc/gpu/gate.h"
#include "csrc/gpu/gpu.h"

namespace byteps_like {

// Destroys objects that may wait for the device without holding the GIL, since the device may be waiting for a Python
// thread.
template <typename T>
class Freed {
 public:
  explicit Freed(T held) : held_(std::move(held)) {}
  ~Freed() {
    nanobind::gil_scoped_release release;
    held_.reset();
  }
  Freed(const Freed&) = delete;
  decltype(auto) operator*() const { return *held_; }
  typename T::element_type* operator->() const { return held_.get(); }
  const T& held() const { return held_; }

 private:
  T held_;
};

struct PyGpu {
  Freed<std::shared_ptr<Gpu>> gpu;
  Freed<std::shared_ptr<GpuGates>> gates;
};

}  // namespace byteps_like
