// Tensors on the software GPU (tests/software_gpu/libcuda.cc) in a Cluster.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compression/gpu/registry.h"
#include "csrc/engine/engine.h"
#include "csrc/gpu/memory.h"
#include "csrc/gpu/stream.h"
#include "tests/native/compression/coded_fixture.h"
#include "tests/software_gpu/launch.h"

namespace byteps_like::testing {

template <typename T>
T Made(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}

// The stand-in, reset when a test begins and found without misuse when it ends.
class SoftwareCuda {
 public:
  SoftwareCuda() : library_(::dlopen(BYTEPS_LIKE_SOFTWARE_CUDA, RTLD_NOW)) {
    Control<void()>("software_gpu_reset")();
    driver_ = Made(Driver::Open(BYTEPS_LIKE_SOFTWARE_CUDA));
  }
  ~SoftwareCuda() {
    CHECK(misuse() == "");
    if (!lost_) CHECK(objects() == 0);
    Control<void()>("software_gpu_reset")();
  }

  std::shared_ptr<Gpu> Open(int ordinal = 0, int connections = kDefaultConnections) const {
    return Made(Gpu::Open(driver_, ordinal, connections));
  }
  const Driver& driver() const { return *driver_; }
  void Fail(const std::string& function, int error, uint32_t nth = 1) const {
    Control<void(const char*, uint32_t, int)>("software_gpu_fail")(function.c_str(), nth, error);
  }
  bool happened() const { return Control<uint32_t()>("software_gpu_failures")() == 0; }  // what was asked for by Fail
  void Reset() const { Control<void()>("software_gpu_reset")(); }
  void Lose() {
    lost_ = true;
    Control<void()>("software_gpu_lose")();
  }
  void WaitValues(bool supported) const { Control<void(int)>("software_gpu_wait_values")(supported); }
  void Capture(bool on) const { Control<void(int)>("software_gpu_capture")(on); }
  void CopyDelay(uint32_t microseconds) const { Control<void(uint32_t)>("software_gpu_copy_delay")(microseconds); }
  void QueueLength(uint64_t tasks) const { Control<void(uint64_t)>("software_gpu_queue_length")(tasks); }
  // No other thread makes calls that may wait for the whole device while a stream waits for a word.
  void ThisIsTheProgram() const { Control<void()>("software_gpu_program")(); }
  void Hold(const char* function) const { Control<void(const char*)>("software_gpu_hold")(function); }
  void Connections(uint64_t queues) const { Control<void(uint64_t)>("software_gpu_connections")(queues); }
  uint64_t objects() const { return Control<uint64_t()>("software_gpu_objects")(); }
  uint64_t allocated() const { return Control<uint64_t()>("software_gpu_allocated")(); }
  std::string misuse() const { return Control<const char*()>("software_gpu_misuse")(); }

  static KernelTable Kernels() {
    KernelTable table;
    for (const software_gpu::Kernel* const kernel : software_gpu::Kernels())
      table[std::string(kernel->name)] = reinterpret_cast<KernelHandle>(kernel);
    return table;
  }

 private:
  template <typename F>
  F* Control(const char* name) const {
    return reinterpret_cast<F*>(::dlsym(library_, name));
  }
  void* const library_;
  std::shared_ptr<const Driver> driver_;
  bool lost_ = false;
};

// The codec with its twin on the GPU; no codec for "".
inline CodecUse Twinned(const std::string& spec, uint32_t world) {
  if (spec.empty()) return {};
  const auto codec = CodecOf(spec, world);
  return {codec, codec->spec(), Made(MakeGpuCodec(codec, SoftwareCuda::Kernels()))};
}

// One rank's tensor of floats on the device, its mirror, and the stream that the rank's program works on.
class GpuTensor {
 public:
  GpuTensor(Cluster& cluster, uint32_t rank, std::shared_ptr<Gpu> gpu, size_t count, uint64_t first_key,
            const CodecUse& use = {})
      : engine_(cluster.engine(rank)), gpu_(std::move(gpu)), count_(count), parts_(cluster.Cut(count * 4, first_key)) {
    memory_ = Made(GpuMemory::Allocate(gpu_, count * 4));
    mirror_ = Made(SharedBuffer::Create(count * 4));
    pinned_ = Made(PinnedMemory::Lock(gpu_, mirror_));
    staging_ = Made(PinnedMemory::Lock(gpu_, Made(SharedBuffer::Create(count * 4))));
    stream_ = Made(GpuStream::Create(gpu_));
    engine_.Register(mirror_);
    id_ = use.codec ? Made(engine_.DeclareCoded(parts_, use)) : engine_.Declare(DType::kFloat32, parts_);
  }
  ~GpuTensor() { (void)stream_->Synchronize(); }

  uint32_t id() const { return id_; }
  GpuStream& stream() { return *stream_; }
  DevicePointer address() const { return memory_->address(); }

  // On the program's stream; nobody waits.
  void Set(const std::vector<float>& values) {
    std::memcpy(staging_->data(), values.data(), count_ * 4);
    const CurrentContext current(*gpu_);
    CHECK(gpu_->api().MemcpyUp(address(), staging_->data(), count_ * 4, stream_->handle()) == cuda::kSuccess);
  }
  // After what is on the program's stream.
  std::vector<float> Get() {
    const CurrentContext current(*gpu_);
    CHECK(gpu_->api().MemcpyDown(staging_->data(), address(), count_ * 4, stream_->handle()) == cuda::kSuccess);
    CHECK(stream_->Synchronize().ok());
    std::vector<float> values(count_);
    std::memcpy(values.data(), staging_->data(), count_ * 4);
    return values;
  }
  Result<std::shared_ptr<Operation>> Start(Op op, int32_t priority = 0) {
    Engine::Request request;
    request.tensor = id_;
    request.address = mirror_->data();
    request.last_part = static_cast<uint32_t>(parts_.size());
    request.op = op;
    request.priority = priority;
    request.device = address();
    request.stream = reinterpret_cast<uint64_t>(stream_->handle());
    return engine_.Submit(request);
  }
  Result<bool> Block(const Operation& operation) {
    return engine_.WaitOnStream(operation, reinterpret_cast<uint64_t>(stream_->handle()));
  }
  Status Wait(Operation& operation) { return engine_.Wait(operation, Clock::now() + std::chrono::seconds(20)); }

 private:
  Engine& engine_;
  const std::shared_ptr<Gpu> gpu_;
  const size_t count_;
  const std::vector<PartitionSpec> parts_;
  std::unique_ptr<GpuMemory> memory_;
  std::shared_ptr<SharedBuffer> mirror_;
  std::unique_ptr<PinnedMemory> pinned_, staging_;
  std::unique_ptr<GpuStream> stream_;
  uint32_t id_ = 0;
};

}  // namespace byteps_like::testing
