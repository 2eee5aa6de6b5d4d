// A device as this process uses it: its primary context, which is torch's and CuPy's too.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/gpu/driver.h"

namespace byteps_like {

struct GpuInfo {
  int ordinal = 0;
  std::string name;
  std::string pci;   // "0000:17:00.0", as sysfs has it
  std::string uuid;  // 32 hexadecimal digits
  uint64_t bytes = 0;
};

// Those that the process may see. Makes no context.
Result<std::vector<GpuInfo>> ListGpus(const Driver& driver);

// Queues of the hardware that a process has on a device, unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise; and the
// least with which we have streams wait for words: two in one queue run one after the other, and the copy by which the
// word of the first is written may be on the second.
inline constexpr int kDefaultConnections = 8, kLeastConnections = 8;

// Thread-safe. Objects made on it keep it alive; the context is released with the last of them.
class Gpu {
 public:
  static Result<std::shared_ptr<Gpu>> Open(std::shared_ptr<const Driver> driver, int ordinal,
                                           int connections = kDefaultConnections);
  ~Gpu();
  Gpu(const Gpu&) = delete;

  const Driver& driver() const { return *driver_; }
  const cuda::Functions& api() const { return driver_->api(); }
  const GpuInfo& info() const { return info_; }
  cuda::Context context() const { return context_; }
  // Of streams beside the framework's: more urgent than those, so never behind them in one queue of the hardware.
  int urgency() const { return urgency_; }
  // Bytes of shared memory that a block may have, if its launch asks for them.
  uint32_t most_shared() const { return most_shared_; }

  // Why no stream may wait for a word of host memory; "": it may.
  std::string WhyNoWaits() const;
  bool waits() const { return connections_ >= kLeastConnections && api().StreamWaitValue != nullptr; }
  Result<std::pair<uint64_t, uint64_t>> Memory() const;  // bytes free, and all
  Status Check(cuda::Outcome outcome, std::string_view what) const;
  // For good, as CurrentContext for a while: what the calling thread asks of CUDA leaves graphs whole.
  void IgnoreCaptures() const;

  // Bytes of device memory that are held through GpuMemory.
  uint64_t held() const { return held_; }

 private:
  friend class GpuMemory;
  Gpu(std::shared_ptr<const Driver> driver, GpuInfo info, int connections)
      : driver_(std::move(driver)), info_(std::move(info)), connections_(connections) {}

  const std::shared_ptr<const Driver> driver_;
  const GpuInfo info_;
  const int connections_;
  cuda::Context context_ = nullptr;
  int urgency_ = 0;
  uint32_t most_shared_ = 0;
  std::atomic<uint64_t> held_{0};
};

// The context is the calling thread's while this lives: most calls of the driver go by it. And a graph that another
// thread captures meanwhile stays whole: it has nothing to do with what is called here.
class CurrentContext {
 public:
  explicit CurrentContext(const Gpu& gpu);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  const Status& status() const { return status_; }

 private:
  const Gpu& gpu_;
  Status status_;
  int32_t capture_mode_;
};

}  // namespace byteps_like
