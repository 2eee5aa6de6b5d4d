// Tensors on a (software) GPU when the driver fails, in any call; when the device is lost, says nothing, or the job
// ends.
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>

#include "compression/gpu/registry.h"
#include "csrc/gpu/gate.h"
#include "tests/native/compression/coded_fixture.h"
#include "tests/native/gpu/gpu_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr size_t kThreePartitions = 2500;  // elements: the last is a short one
const ClusterOptions kAlone{.workers = 1, .partition_bytes = 4096, .stall_warning = 0};

// A program's rounds until something fails.
Status RunRounds(Engine& engine, GpuTensor& tensor, const std::shared_ptr<Gpu>& gpu) {
  const Status used = engine.UseGpu(gpu, SoftwareCuda::Kernels());
  if (!used.ok()) return used;
  for (int round = 0; round < 2; ++round) {
    auto operation = tensor.Start(Op::kSum);
    if (!operation.ok()) return operation.status();
    const auto blocked = tensor.Block(**operation);
    const Status status = tensor.Wait(**operation);
    if (!blocked.ok()) return blocked.status();
    if (!status.ok()) return status;
  }
  return Status();
}

// Without the version of the symbol.
std::string NameOf(const std::string& symbol) { return symbol.substr(0, symbol.find("_v")); }

// Whether there was an nth call. The tensor, with its mirror, goes as soon as its operation has ended: who is still
// copying then is found out.
bool FailAt(const std::string& symbol, uint32_t nth, const std::string& spec) {
  CAPTURE(symbol);
  CAPTURE(nth);
  CAPTURE(spec);
  SoftwareCuda cuda;
  cuda.CopyDelay(50);
  cuda.ThisIsTheProgram();
  const auto gpu = cuda.Open();
  bool happened = false;
  Status status;
  {
    Cluster cluster(kAlone);
    Engine& engine = cluster.engine(0);
    GpuTensor tensor(cluster, 0, gpu, kThreePartitions, 1, Twinned(spec, 1));
    cuda.Fail(symbol, cuda::kOutOfMemory, nth);
    status = RunRounds(engine, tensor, gpu);
    happened = cuda.happened();
  }
  // Calls whose failure nobody can do anything about: what ends then has ended.
  const bool frees = symbol.find("Free") != symbol.npos || symbol.find("Destroy") != symbol.npos ||
                     symbol.find("Unregister") != symbol.npos || symbol == "cuCtxPushCurrent_v2";
  if (happened && (!frees || !status.ok())) {
    CHECK(status.code() == Code::kCapacity);
    CHECK(status.message().find("GPU 0: " + NameOf(symbol)) != std::string::npos);
    CHECK(status.message().find("CUDA_ERROR_OUT_OF_MEMORY (out of memory); smaller partitions") != std::string::npos);
  }
  const bool at_all = cuda.happened();
  const bool forgets = symbol == "cuEventRecord";       // how far a waiting stream is: the words that it waits for stay
  CHECK(cuda.objects() <= (frees || forgets ? 1 : 0));  // what the driver would not take back
  CHECK(cuda.misuse() == "");
  cuda.Reset();
  return at_all;
}

}  // namespace

#define SYMBOL(member, symbol, ...) symbol,
constexpr const char* kSymbols[] = {BYTEPS_LIKE_CUDA_FUNCTIONS(SYMBOL) BYTEPS_LIKE_CUDA_OPTIONAL(SYMBOL)};

TEST_CASE("gpu stager: whichever call of the driver fails, it is named, nobody waits for ever, nothing is left") {
  for (const char* const symbol : kSymbols)
    for (const char* const spec : {"fixed:bits=16,block=256", "coo", ""}) {
      uint32_t nth = 1;
      while (FailAt(symbol, nth, spec)) nth *= 2;
      if (nth == 1) break;  // nobody calls it
    }
}

TEST_CASE("gpu stager: memory is free when its operation has ended, with others' copies under way") {
  SoftwareCuda cuda;
  cuda.CopyDelay(3000);
  const auto gpu = cuda.Open();
  Cluster cluster(kAlone);
  REQUIRE(cluster.engine(0).UseGpu(gpu, {}).ok());
  {
    GpuTensor tensor(cluster, 0, gpu, kThreePartitions, 1);
    cuda.Fail("cuMemcpyDtoHAsync_v2", cuda::kOutOfMemory, 3);
    auto operation = tensor.Start(Op::kSum);
    REQUIRE(operation.ok());
    CHECK(tensor.Wait(**operation).code() == Code::kCapacity);
    CHECK(tensor.Start(Op::kSum).status().code() == Code::kCapacity);
  }
}

TEST_CASE("gpu stager: what a stream that never ends may still use stays, and its operation says so") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  const auto gate = Made(Made(GpuGates::Create(gpu))->Make());
  Status status;
  {
    ClusterOptions options = kAlone;
    options.drain_timeout = 0.02;
    Cluster cluster(options);
    Engine& engine = cluster.engine(0);
    REQUIRE(engine.UseGpu(gpu, {}).ok());
    GpuTensor tensor(cluster, 0, gpu, kThreePartitions, 1);
    CHECK(Made(gate->Block(tensor.stream().handle())));
    auto operation = tensor.Start(Op::kSum);
    REQUIRE(operation.ok());
    while (engine.bytes_down() == 0) std::this_thread::yield();  // it is on a lane
    engine.Close();
    status = tensor.Wait(**operation);
    gate->Open();
  }
  CHECK(status.code() == Code::kDevice);
  CHECK(status.message().find("don't use their memory again") != std::string::npos);
  CHECK(cuda.objects() > 0);
  cuda.Reset();
}

TEST_CASE("gpu stager: a driver that doesn't come back is told of, with what may keep it") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  ClusterOptions options = kAlone;
  options.stall_warning = 0.05;
  Cluster cluster(options);
  REQUIRE(cluster.engine(0).UseGpu(gpu, {}).ok());
  GpuTensor tensor(cluster, 0, gpu, kThreePartitions, 1);
  cuda.Hold("cuMemcpyHtoDAsync_v2");  // as while another thread frees memory
  auto operation = tensor.Start(Op::kSum);
  REQUIRE(operation.ok());
  const auto told = [&] {
    std::lock_guard lock(cluster.warnings_mutex);
    return std::ranges::any_of(cluster.warnings, [](const std::string& text) {
      return text.find("rank 0 waits for the driver of GPU 0, which has not queued key") == 0;
    });
  };
  const Deadline until = Clock::now() + std::chrono::seconds(10);
  while (!told() && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(told());
  cuda.Hold("");
  CHECK(tensor.Wait(**operation).ok());
}

TEST_CASE("gpu stager: a device that is lost ends what was on it") {
  SoftwareCuda cuda;
  cuda.CopyDelay(20000);
  {
    const auto gpu = cuda.Open();
    Cluster cluster({.workers = 1, .stall_warning = 0});
    REQUIRE(cluster.engine(0).UseGpu(gpu, {}).ok());
    GpuTensor tensor(cluster, 0, gpu, kThreePartitions, 1);
    auto operation = tensor.Start(Op::kSum);
    REQUIRE(operation.ok());
    cuda.Lose();
    const Status status = tensor.Wait(**operation);
    CHECK(status.code() == Code::kDevice);
    CHECK(status.message().find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos);
  }
}

TEST_CASE("gpu stager: the end of this rank, or of the job, opens waiting streams") {
  for (const bool fails : {false, true}) {
    CAPTURE(fails);
    SoftwareCuda cuda;
    const auto gpu = cuda.Open();
    Cluster cluster({.workers = 2, .stall_warning = 0});
    Engine& engine = cluster.engine(0);
    REQUIRE(engine.UseGpu(gpu, {}).ok());
    GpuTensor tensor(cluster, 0, gpu, kThreePartitions, 1);
    tensor.Set(std::vector<float>(kThreePartitions, 1));
    auto operation = tensor.Start(Op::kSum);  // the other rank never comes
    REQUIRE(operation.ok());
    CHECK(Made(tensor.Block(**operation)));
    if (fails) {
      engine.Fail(Code::kPeerLost, "worker 1 died");
    } else {
      engine.Close();
    }
    CHECK(tensor.stream().Synchronize().ok());
    CHECK(tensor.Wait(**operation).code() == (fails ? Code::kPeerLost : Code::kClosed));
    CHECK(tensor.Block(**operation).status().code() == (fails ? Code::kPeerLost : Code::kClosed));
    CHECK(tensor.Start(Op::kSum).status().code() == (fails ? Code::kPeerLost : Code::kClosed));
    engine.Close();
  }
}

}  // namespace byteps_like::testing
