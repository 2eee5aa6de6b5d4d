// Launches of one call, one after another until one fails.
#pragma once

#include <utility>

#include "csrc/gpu/launcher.h"

namespace byteps_like {

inline constexpr uint32_t kBlockThreads = 256, kWarpThreads = 32;
inline constexpr uint32_t kOfDenseThread = 8;  // elements, in kernels of dense codecs
inline constexpr LaunchShape kOneBlock{.blocks = 1, .threads = kBlockThreads};
inline constexpr LaunchShape kLargeBlock{.blocks = 1, .threads = 1024};

class Launches {
 public:
  explicit Launches(Launcher& launcher) : launcher_(launcher) {}

  // For `count` elements, `each` a thread.
  template <typename... A>
  Launches& Over(uint64_t count, uint32_t each, KernelHandle kernel, const A&... arguments) {
    return With(ShapeFor(count, each, kBlockThreads), kernel, arguments...);
  }
  template <typename... A>
  Launches& With(const LaunchShape& shape, KernelHandle kernel, const A&... arguments) {
    if (status_.ok()) status_ = launcher_.Launch(kernel, shape, arguments...);
    return *this;
  }
  Launches& Zero(DevicePointer to, size_t bytes) {
    if (status_.ok()) status_ = launcher_.Fill(to, 0, bytes);
    return *this;
  }
  Launches& Copy(DevicePointer to, DevicePointer from, size_t bytes) {
    if (status_.ok() && to != from) status_ = launcher_.Copy(to, from, bytes);
    return *this;
  }

  const Status& status() const { return status_; }

 private:
  Launcher& launcher_;
  Status status_;
};

// Parts of a workspace, each aligned to 16 bytes. Begun at 0, its end is the bytes they take.
class Area {
 public:
  explicit Area(DevicePointer begin) : end_(begin) {}
  DevicePointer Words(uint64_t count) {
    const DevicePointer part = end_;
    end_ += (count + 3) / 4 * 16;
    return part;
  }
  DevicePointer end() const { return end_; }

 private:
  DevicePointer end_;
};

}  // namespace byteps_like
