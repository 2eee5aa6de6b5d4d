// The driver, and memory, streams and events of a device, over the software GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "csrc/gpu/driver.h"
#include "csrc/gpu/gate.h"
#include "csrc/gpu/stream_launcher.h"
#include "tests/native/gpu/gpu_fixture.h"

namespace byteps_like::testing {
namespace {}  // namespace

TEST_CASE("gpu driver: what isn't there is named, with what to do") {
  const auto none = Driver::Open("/nowhere/libcuda.so.1");
  CHECK(none.status().code() == Code::kDevice);
  CHECK(Says(none.status(), "/nowhere/libcuda.so.1"));
  CHECK(Says(none.status(), "install NVIDIA's"));
  const auto other = Driver::Open("libc.so.6");
  CHECK(other.status().code() == Code::kDevice);
  CHECK(Says(other.status(), "cuInit"));
}

TEST_CASE("gpu driver: devices, and errors by CUDA's names") {
  SoftwareCuda cuda;
  const auto gpus = Made(ListGpus(cuda.driver()));
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[1].pci == "0000:18:00.0");
  CHECK(gpus[1].uuid.size() == 32);
  const auto beyond = Gpu::Open(Made(Driver::Open(BYTEPS_LIKE_SOFTWARE_CUDA)), 7);
  CHECK(Says(beyond.status(), "CUDA_ERROR_INVALID_DEVICE"));
  const auto gpu = cuda.Open();
  cuda.Fail("cuMemAlloc_v2", cuda::kOutOfMemory);
  const auto memory = GpuMemory::Allocate(gpu, 4096);
  CHECK(memory.status().code() == Code::kCapacity);
  CHECK(Says(memory.status(), "GPU 0: cuMemAlloc of 4096 bytes: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"));
  CHECK(IsSticky(cuda::kLaunchFailed));
  CHECK(!IsSticky(cuda::kOutOfMemory));
  CHECK(!IsSticky(cuda::kAlreadyRegistered));
}

TEST_CASE("gpu driver: memory of another process, by its handle and an offset") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  const auto memory = Made(GpuMemory::Allocate(gpu, 8192));
  CHECK(gpu->held() == 8192);
  CHECK(cuda.allocated() == 8192);
  const auto exported = Made(ExportMemory(*gpu, memory->address() + 4096));
  const auto opened = Made(GpuMemory::Open(gpu, exported));
  CHECK(opened->bytes() == 4096);
  CHECK(opened->address() != memory->address() + 4096);
  *reinterpret_cast<float*>(memory->address() + 4096) = 42;
  CHECK(*reinterpret_cast<float*>(opened->address()) == 42);
  CHECK(GpuMemory::Open(gpu, "rubbish").status().code() == Code::kInvalid);
  CHECK(Made(DeviceOf(*gpu, memory->address())) == 0);
  CHECK(DeviceOf(*gpu, 4096).status().code() == Code::kInvalid);
}

TEST_CASE("gpu driver: the software GPU notices copies that race, and memory freed in use") {
  std::string misuse;
  {
    SoftwareCuda cuda;
    cuda.CopyDelay(2000);
    const auto gpu = cuda.Open();
    const CurrentContext current(*gpu);
    auto memory = Made(GpuMemory::Allocate(gpu, 4096));
    const auto pinned = Made(PinnedMemory::Lock(gpu, Made(SharedBuffer::Create(8192))));
    const auto one = Made(GpuStream::Create(gpu)), two = Made(GpuStream::Create(gpu));
    const auto event = Made(GpuEvent::Create(gpu));
    const auto& api = gpu->api();
    CHECK(api.MemcpyUp(memory->address(), pinned->data(), 4096, one->handle()) == cuda::kSuccess);
    CHECK(event->Record(one->handle()).ok());
    CHECK(event->Block(two->handle()).ok());
    CHECK(api.MemcpyDown(pinned->data() + 4096, memory->address(), 4096, two->handle()) == cuda::kSuccess);
    CHECK(cuda.misuse() == "");  // ordered by the event
    CHECK(api.MemcpyUp(memory->address(), pinned->data(), 4096, one->handle()) == cuda::kSuccess);
    CHECK(cuda.misuse().find("is not through with") != std::string::npos);
    memory.reset();
    CHECK(cuda.misuse().find("cuMemFree of memory that") != std::string::npos);
    CHECK(two->Synchronize().ok() == true);
    CHECK(one->Synchronize().ok() == true);
    misuse = cuda.misuse();
    reinterpret_cast<void (*)()>(::dlsym(::dlopen(BYTEPS_LIKE_SOFTWARE_CUDA, RTLD_NOW), "software_gpu_forgive"))();
  }
  CHECK(!misuse.empty());
}

TEST_CASE("gpu driver: a launch asks for the shared memory that not every device has") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  CHECK(gpu->most_shared() == 227 * 1024);
  const auto memory = Made(GpuMemory::Allocate(gpu, 64));
  auto* const values = reinterpret_cast<float*>(memory->address());
  std::fill_n(values, 16, 1.0f);
  const auto stream = Made(GpuStream::Create(gpu));
  const CurrentContext current(*gpu);
  StreamLauncher launcher(*stream);
  CHECK(launcher.most_shared() == gpu->most_shared());
  const KernelHandle kernel = SoftwareCuda::Kernels().at("feedback_settle");
  const DevicePointer nothing = 0;
  const auto launch = [&](uint32_t shared) {
    return launcher.Launch(kernel, {.blocks = 1, .threads = 256, .shared = shared}, memory->address(), uint32_t{16},
                           nothing, memory->address());
  };
  cuda.Fail("cuFuncSetAttribute", cuda::kInvalidValue);
  CHECK(launch(48 * 1024).ok());
  CHECK(Says(launch(64 * 1024), "cuFuncSetAttribute for 65536 bytes of shared memory: CUDA_ERROR_INVALID_VALUE"));
  CHECK(launch(64 * 1024).ok());
  CHECK(launch(gpu->most_shared() + 1).code() == Code::kDevice);
  CHECK(stream->Synchronize().ok());
}

TEST_CASE("gpu gates: with too few queues of the hardware the host waits, since a wait could hold up what ends it") {
  SoftwareCuda cuda;
  cuda.Connections(1);
  const auto gpu = cuda.Open(), careful = cuda.Open(0, 1);
  const auto waiting = Made(GpuStream::Create(gpu)), other = Made(GpuStream::Create(gpu));
  const auto event = Made(GpuEvent::Create(gpu));
  auto gate = Made(Made(GpuGates::Create(gpu))->Make());
  CHECK(Made(gate->Block(waiting->handle())));
  CHECK(event->Record(other->handle()).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(!Made(event->Done()));  // what could be the copy that the gate waits for
  gate->Open();
  CHECK(event->Synchronize().ok());

  CHECK(gpu->WhyNoWaits() == "");
  CHECK(Says(Status(Code::kDevice, careful->WhyNoWaits()), "CUDA_DEVICE_MAX_CONNECTIONS=1"));
  gate = Made(Made(GpuGates::Create(careful))->Make());
  CHECK(!Made(gate->Block(waiting->handle())));
  CHECK(waiting->Synchronize().ok());
}

TEST_CASE("gpu gates: streams wait until the host opens them, and a gate that goes is open") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  const auto gates = Made(GpuGates::Create(gpu));
  const auto stream = Made(GpuStream::Create(gpu));
  for (int round = 0; round < 3; ++round) {  // the same word, again and again
    auto gate = Made(gates->Make());
    CHECK(Made(gate->Block(stream->handle())));
    CHECK(!Made(stream->Done()));
    if (round == 1) gate->Open();
    CHECK(gate->is_open() == (round == 1));
    gate.reset();
    CHECK(stream->Synchronize().ok());
  }
  std::vector<std::unique_ptr<GpuGate>> many;
  for (int i = 0; i < 3000; ++i) many.push_back(Made(gates->Make()));
  CHECK(Made(many.back()->Block(stream->handle())));
  for (int i = 0; i < 2999; ++i) many[static_cast<size_t>(i)]->Open();
  CHECK(!Made(stream->Done()));
  many.clear();
  CHECK(stream->Synchronize().ok());
  cuda.WaitValues(false);
  auto gate = Made(gates->Make());
  CHECK(!Made(gate->Block(stream->handle())));
}

}  // namespace byteps_like::testing
