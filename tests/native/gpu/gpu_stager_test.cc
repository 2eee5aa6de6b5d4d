// Tensors on a (software) GPU through a real server: what comes back, when, and what of it overlaps; failures.
#include <doctest/doctest.h>

#include <algorithm>

#include "compression/gpu/registry.h"
#include "csrc/base/trace.h"
#include "csrc/engine/staging/stager.h"
#include "tests/native/compression/coded_fixture.h"
#include "tests/native/gpu/gpu_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr size_t kFivePartitions = 20000;  // elements: the last is a short one

Floats Values(uint32_t rank, uint32_t round, size_t count = kFivePartitions) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 7 + rank * 13 + round * 101) % 1999) / 64.0f - 15.0f;
  return values;
}

Floats Sum(uint32_t world, uint32_t round) {
  Floats sum(kFivePartitions);
  for (uint32_t rank = 0; rank < world; ++rank)
    for (size_t i = 0; const float value : Values(rank, round)) sum[i++] += value;
  return sum;
}

// Streams wait; nothing waits on the host until the end of each round.
void RunRaw(const ClusterOptions& options, uint32_t delay, bool captured = false) {
  SoftwareCuda cuda;
  cuda.Capture(captured);
  cuda.CopyDelay(delay);
  const auto gpu = cuda.Open();
  Cluster cluster(options);
  cluster.Everybody([&](uint32_t rank) {
    REQUIRE(cluster.engine(rank).UseGpu(gpu, {}).ok());
    GpuTensor tensor(cluster, rank, gpu, kFivePartitions, 1);
    for (uint32_t round = 0; round < 4; ++round) {
      tensor.Set(Values(rank, round));
      auto operation = tensor.Start(Op::kSum);
      REQUIRE(operation.ok());
      CHECK(Made(tensor.Block(**operation)));
      CHECK(tensor.Get() == Sum(options.workers, round));
    }
    CHECK(cluster.engine(rank).bytes_down() == 4 * kFivePartitions * 4);
    CHECK(cluster.engine(rank).bytes_up() == 4 * kFivePartitions * 4);
    cluster.engine(rank).Close();
  });
}

// The same tensor on the device and in host memory: bit for bit the same, feedback included.
void RunCoded(const std::string& spec) {
  SoftwareCuda cuda;
  cuda.CopyDelay(200);
  const auto gpu = cuda.Open();
  constexpr uint32_t kWorld = 2;
  Cluster cluster({.workers = kWorld});
  const CodecUse use{CodecOf(spec, kWorld), spec};
  cluster.Everybody([&](uint32_t rank) {
    Engine& engine = cluster.engine(rank);
    REQUIRE(engine.UseGpu(gpu, SoftwareCuda::Kernels()).ok());
    GpuTensor tensor(cluster, rank, gpu, kFivePartitions, 1, use);
    CHECK(!engine.EncodesOnGpu(tensor.id()));
    CodedTensor host(cluster, rank, kFivePartitions, use, 1001);
    Floats left(kFivePartitions), expected(kFivePartitions);
    engine.SetFeedback(tensor.id(), {.residual = left.data()});
    engine.SetFeedback(host.id(), {.residual = expected.data()});
    for (uint32_t round = 0; round < 3; ++round) {
      const Op op = round == 1 ? Op::kAverage : Op::kSum;
      tensor.Set(Values(rank, round));
      host.data() = Values(rank, round);
      auto operation = tensor.Start(op);
      REQUIRE(operation.ok());
      CHECK(Made(tensor.Block(**operation)));
      CHECK(host.Run(op).ok());
      CHECK(tensor.Get() == host.data());
      CHECK(left == expected);
    }
    const Floats before = expected;  // what a tensor of the host can't reach stays as it is
    engine.SetFeedback(host.id(), {.residual = expected.data(), .on_gpu = true});
    CHECK(host.Run(Op::kSum).ok());
    CHECK(expected == before);
    engine.Close();
  });
}

}  // namespace

TEST_CASE("gpu stager: sums are exact, in order with the program's stream") {
  for (const char* scheme : {"inproc", "shm", "tcp"}) {
    CAPTURE(scheme);
    RunRaw({.workers = 2, .shards = 2, .scheme = scheme}, scheme == std::string("tcp") ? 300 : 50);
  }
}

TEST_CASE("gpu stager: a graph that is captured meanwhile, on another stream, stays whole") {
  RunRaw({.workers = 2}, 50, true);
}

TEST_CASE("gpu stager: a codec without a twin encodes on the CPU") { RunCoded("onebit:block=256"); }

TEST_CASE("gpu stager: partitions come down while others are on the wire") {
  SoftwareCuda cuda;
  cuda.CopyDelay(4000);
  const auto gpu = cuda.Open();
  Cluster cluster({.workers = 1});
  REQUIRE(cluster.engine(0).UseGpu(gpu, {}).ok());
  GpuTensor tensor(cluster, 0, gpu, 4096 * 32, 1);
  tensor.Set(Values(0, 0, 4096 * 32));
  StartTracing(1 << 12);
  (void)DrainTrace();
  auto operation = tensor.Start(Op::kSum);
  REQUIRE(operation.ok());
  CHECK(tensor.Wait(**operation).ok());
  StopTracing();
  const auto records = DrainTrace().records;
  int64_t first_up = INT64_MAX, last_down = 0;
  size_t down = 0, up = 0;
  for (const TraceRecord& record : records) {
    if (record.kind == TraceKind::kDown) last_down = std::max(last_down, record.begin), ++down;
    if (record.kind == TraceKind::kUp) first_up = std::min(first_up, record.begin), ++up;
  }
  CHECK(down == 32);
  CHECK(up == 32);
  CHECK(first_up < last_down);  // one is back from the network before another is on its way down
}

TEST_CASE("gpu stager: urgent partitions that wait for an earlier operation don't keep it from ending") {
  for (const bool coded : {false, true}) {
    CAPTURE(coded);
    SoftwareCuda cuda;
    cuda.CopyDelay(500);
    const auto gpu = cuda.Open();
    Cluster cluster({.workers = 1});
    REQUIRE(cluster.engine(0).UseGpu(gpu, SoftwareCuda::Kernels()).ok());
    CodecUse use;
    if (coded) {
      const auto codec = CodecOf("fixed:bits=32,block=256", 1);
      use = {codec, codec->spec(), Made(MakeGpuCodec(codec, SoftwareCuda::Kernels()))};
    }
    GpuTensor first(cluster, 0, gpu, 4096 * 8, 1, use), second(cluster, 0, gpu, 4096 * 8, 101, use);
    first.Set(Values(0, 0, 4096 * 8));
    second.Set(Values(0, 1, 4096 * 8));
    auto earlier = first.Start(Op::kSum);
    REQUIRE(earlier.ok());
    CHECK(Made(second.Block(**earlier)));
    auto urgent = second.Start(Op::kSum, 10);
    REQUIRE(urgent.ok());
    CHECK(second.Wait(**urgent).ok());
    CHECK((*earlier)->done());
    CHECK(first.Get() == Values(0, 0, 4096 * 8));
  }
}

TEST_CASE("gpu stager: one queue for all streams, and nobody waits for ever") {
  SoftwareCuda cuda;
  cuda.Connections(1);
  const auto gpu = cuda.Open(0, 1);
  Cluster cluster({.workers = 1});
  REQUIRE(cluster.engine(0).UseGpu(gpu, SoftwareCuda::Kernels()).ok());
  GpuTensor tensor(cluster, 0, gpu, kFivePartitions, 1, Twinned("fixed:bits=32,block=256", 1));
  for (uint32_t round = 0; round < 2; ++round) {
    tensor.Set(Values(0, round));
    auto operation = tensor.Start(Op::kSum);
    REQUIRE(operation.ok());
    if (!(*operation)->done()) CHECK(!Made(tensor.Block(**operation)));
    CHECK(tensor.Wait(**operation).ok());
    CHECK(tensor.Get() == Values(0, round));
  }
}

TEST_CASE("gpu stager: the queues that CUDA has unless told otherwise are enough for three streams of the program") {
  SoftwareCuda cuda;
  cuda.CopyDelay(50);
  cuda.Connections(kDefaultConnections);
  const auto gpu = cuda.Open();
  Cluster cluster({.workers = 1});
  REQUIRE(cluster.engine(0).UseGpu(gpu, SoftwareCuda::Kernels()).ok());
  const CodecUse use = Twinned("fixed:bits=32,block=256", 1);
  GpuTensor first(cluster, 0, gpu, kFivePartitions, 1), second(cluster, 0, gpu, kFivePartitions, 101, use);
  GpuTensor third(cluster, 0, gpu, kFivePartitions, 201);
  std::shared_ptr<Operation> last;
  for (uint32_t round = 0; round < 3; ++round)
    for (GpuTensor* const tensor : {&first, &second, &third}) {
      if (last) CHECK(Made(tensor->Block(*last)));
      if (round == 0) tensor->Set(Values(0, 0));
      auto operation = tensor->Start(Op::kSum);
      REQUIRE(operation.ok());
      CHECK(Made(tensor->Block(**operation)));
      CHECK(tensor->Wait(**operation).ok());
      last = *operation;
    }
  for (GpuTensor* const tensor : {&first, &second, &third}) CHECK(tensor->Get() == Values(0, 0));
}

TEST_CASE("gpu stager: without waits by value the host has to wait; other devices and no device are refused") {
  SoftwareCuda cuda;
  cuda.WaitValues(false);
  const auto gpu = cuda.Open(), second = cuda.Open(1);
  Cluster cluster({.workers = 1});
  Engine& engine = cluster.engine(0);
  GpuTensor tensor(cluster, 0, gpu, kFivePartitions, 1), elsewhere(cluster, 0, second, kFivePartitions, 101);
  CHECK(tensor.Start(Op::kSum).status().code() == Code::kInvalid);
  REQUIRE(engine.UseGpu(gpu, {}).ok());
  tensor.Set(Values(0, 0));
  auto operation = tensor.Start(Op::kSum);
  REQUIRE(operation.ok());
  if (!(*operation)->done()) CHECK(!Made(tensor.Block(**operation)));
  CHECK(tensor.Wait(**operation).ok());
  CHECK(tensor.Get() == Values(0, 0));
  CHECK(elsewhere.Start(Op::kSum).status().message().find("a tensor on GPU 1") != std::string::npos);
  engine.Close();
}

}  // namespace byteps_like::testing
