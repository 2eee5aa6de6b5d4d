// Memory of a device, and memory of the host that a device copies from and to by itself.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "csrc/gpu/gpu.h"
#include "csrc/transport/memory/shared_buffer.h"

namespace byteps_like {

// Device memory: our own, or that of another process on this host, mapped. Freeing waits for the device: never in a
// round.
class GpuMemory {
 public:
  static Result<std::unique_ptr<GpuMemory>> Allocate(std::shared_ptr<Gpu> gpu, size_t bytes);
  // Opens memory that another process has exported with `Export`, and which that process keeps until this object is
  // destroyed.
  static Result<std::unique_ptr<GpuMemory>> Open(std::shared_ptr<Gpu> gpu, std::string_view exported);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;

  cuda::DeviceAddress address() const { return base_ + offset_; }
  size_t bytes() const { return bytes_; }

 private:
  GpuMemory(std::shared_ptr<Gpu> gpu, cuda::DeviceAddress base, size_t offset, size_t bytes, bool own);
  const std::shared_ptr<Gpu> gpu_;
  const cuda::DeviceAddress base_;  // of the allocation
  const size_t offset_, bytes_;
  const bool own_;
};

// Names any device memory of this process to others on the host (CUDA IPC): the allocation that `address` lies in, and
// where. Bytes for GpuMemory::Open.
Result<std::string> ExportMemory(const Gpu& gpu, cuda::DeviceAddress address);

// Which device it is on. kInvalid: it isn't the driver's.
Result<int> DeviceOf(const Gpu& gpu, cuda::DeviceAddress address);

// Host memory, page-locked while this lives: copies to and from it run beside everything else, at full speed.
class PinnedMemory {
 public:
  static Result<std::unique_ptr<PinnedMemory>> Lock(std::shared_ptr<Gpu> gpu, std::shared_ptr<SharedBuffer> buffer);
  // Of memory that the caller keeps until this is gone.
  static Result<std::unique_ptr<PinnedMemory>> Lock(std::shared_ptr<Gpu> gpu, std::byte* data, size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool Holds(const std::byte* address, size_t bytes) const {
    return address >= data_ && address + bytes <= data_ + bytes_;
  }
  // Where the device sees it.
  Result<cuda::DeviceAddress> DeviceAddressOf(std::byte* address) const;

 private:
  PinnedMemory(std::shared_ptr<Gpu> gpu, std::byte* data, size_t bytes)
      : gpu_(std::move(gpu)), data_(data), bytes_(bytes) {}
  const std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<SharedBuffer> buffer_;
  std::byte* const data_;
  const size_t bytes_;
};

}  // namespace byteps_like
