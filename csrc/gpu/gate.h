// Gates: what streams wait for until the host opens it, a word of page-locked memory each.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/gpu/memory.h"
#include "csrc/gpu/stream.h"

namespace byteps_like {

class GpuGates;

// For one use. Thread-safe. One that goes opens first, so that no stream waits for what nobody can do.
class GpuGate {
 public:
  ~GpuGate();
  GpuGate(const GpuGate&) = delete;

  // Makes later work in `stream` wait. False: this driver can't do it, so the host has to wait.
  Result<bool> Block(cuda::Stream stream) const;
  void Open();  // idempotent
  bool is_open() const;

 private:
  friend class GpuGates;
  struct Word {
    uint32_t* at = nullptr;
    cuda::DeviceAddress address = 0;
    uint32_t value = 0;  // that opens the gate which has it
  };
  GpuGate(std::shared_ptr<GpuGates> gates, Word word) : gates_(std::move(gates)), word_(word) {}
  const std::shared_ptr<GpuGates> gates_;
  const Word word_;
};

// Makes gates. A word only ever grows, so it serves the next gate while streams may still be about to look at it for
// the last. Its memory stays until the last gate and this are gone, and for ever if a stream is still to look at it
// then.
class GpuGates : public std::enable_shared_from_this<GpuGates> {
 public:
  static Result<std::shared_ptr<GpuGates>> Create(std::shared_ptr<Gpu> gpu);
  ~GpuGates();
  Result<std::unique_ptr<GpuGate>> Make();

 private:
  friend class GpuGate;
  explicit GpuGates(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  Status Grow();
  Result<const GpuEvent*> LookOf(cuda::Stream stream);
  const std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;  // never held while the driver is called: host functions drop gates
  std::vector<std::unique_ptr<PinnedMemory>> pages_;
  std::vector<GpuGate::Word> free_;
  std::atomic<bool> unknown_{false};  // whether a stream is still to look at a word
  std::mutex looks_mutex_;
  std::map<cuda::Stream, std::unique_ptr<GpuEvent>> looks_;  // behind the last wait of each stream
};

}  // namespace byteps_like
