// Streams and events of a device. Their destructors don't wait: what was queued runs on, so whatever it uses must stay.
#pragma once

#include <memory>
#include <utility>

#include "csrc/gpu/gpu.h"

namespace byteps_like {

// Work in order, on the device. Doesn't wait for the legacy default stream, and goes before default streams' work.
class GpuStream {
 public:
  static Result<std::unique_ptr<GpuStream>> Create(std::shared_ptr<Gpu> gpu);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;

  cuda::Stream handle() const { return handle_; }
  Gpu& gpu() const { return *gpu_; }
  // Whether all that was queued is done; the failure of the device, if it has failed.
  Result<bool> Done() const;
  // Whether nothing of it will run any more: it is done, or its context is dead.
  bool Over() const;
  Status Synchronize() const;  // blocks

 private:
  GpuStream(std::shared_ptr<Gpu> gpu, cuda::Stream handle) : gpu_(std::move(gpu)), handle_(handle) {}
  const std::shared_ptr<Gpu> gpu_;
  const cuda::Stream handle_;
};

// A point in a stream. Can be recorded again when nobody is still to be told to wait for it.
class GpuEvent {
 public:
  static Result<std::unique_ptr<GpuEvent>> Create(std::shared_ptr<Gpu> gpu);
  ~GpuEvent();
  GpuEvent(const GpuEvent&) = delete;

  cuda::Event handle() const { return handle_; }
  Status Record(cuda::Stream stream) const;  // of this device, the framework's too
  Status Block(cuda::Stream stream) const;   // what comes later there waits for what was recorded last
  Result<bool> Done() const;
  Status Synchronize() const;  // blocks

 private:
  GpuEvent(std::shared_ptr<Gpu> gpu, cuda::Event handle) : gpu_(std::move(gpu)), handle_(handle) {}
  const std::shared_ptr<Gpu> gpu_;
  const cuda::Event handle_;
};

// kInvalid with the reason if a CUDA graph is being captured there: what we would queue can't be part of it.
Status CheckNotCapturing(const Gpu& gpu, cuda::Stream stream);

}  // namespace byteps_like
