// The stager with operations whose streams wait for each other, in orders that differ from rank to rank, and where
// calls of the driver may wait for all streams.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "compression/gpu/registry.h"
#include "csrc/gpu/gate.h"
#include "tests/native/compression/coded_fixture.h"
#include "tests/native/gpu/gpu_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kPartition = 4096;
constexpr size_t kPart = kPartition / sizeof(float);  // elements of a partition

// A tensor that is reduced once; `after` are to be over before its stream goes on.
struct Step {
  size_t parts;
  int32_t priority;
  std::string spec;
  std::vector<size_t> after;
};

Floats Ones(const Step& step) { return Floats(step.parts * kPart, 1.0f); }

// One rank's program: `order` is that of its calls, in which each step comes behind those before it.
void RunSteps(Cluster& cluster, uint32_t rank, const std::shared_ptr<Gpu>& gpu, const std::vector<Step>& steps,
              const std::vector<size_t>& order) {
  Engine& engine = cluster.engine(rank);
  REQUIRE(engine.UseGpu(gpu, SoftwareCuda::Kernels()).ok());
  std::vector<std::unique_ptr<GpuTensor>> tensors;
  for (size_t i = 0; i < steps.size(); ++i)
    tensors.push_back(std::make_unique<GpuTensor>(cluster, rank, gpu, steps[i].parts * kPart, 1 + 100 * i,
                                                  Twinned(steps[i].spec, cluster.options().workers)));
  std::vector<std::shared_ptr<Operation>> operations(steps.size());
  for (const size_t i : order) {
    for (const size_t before : steps[i].after) CHECK(Made(tensors[i]->Block(*operations[before])));
    tensors[i]->Set(Ones(steps[i]));
    operations[i] = Made(tensors[i]->Start(Op::kSum, steps[i].priority));
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    CAPTURE(i);
    CHECK(tensors[i]->Wait(*operations[i]).message() == "");
    CHECK(tensors[i]->Get() == Floats(steps[i].parts * kPart, static_cast<float>(cluster.options().workers)));
  }
  engine.Close();
}

using Orders = std::vector<std::vector<size_t>>;  // of each rank

void RunOrders(const std::vector<Step>& steps, const Orders& orders) {
  SoftwareCuda cuda;
  cuda.CopyDelay(100);
  const auto gpu = cuda.Open();
  Cluster cluster({.workers = static_cast<uint32_t>(orders.size()), .partition_bytes = kPartition, .stall_warning = 0});
  cluster.Everybody([&](uint32_t rank) { RunSteps(cluster, rank, gpu, steps, orders[rank]); });
}

// A random order in which each step comes behind those that it is after.
std::vector<size_t> OrderOf(const std::vector<Step>& steps, std::mt19937& random) {
  std::vector<size_t> order;
  const auto comes = [&](size_t step) { return std::ranges::find(order, step) != order.end(); };
  while (order.size() < steps.size()) {
    const size_t step = random() % steps.size();
    if (!comes(step) && std::ranges::all_of(steps[step].after, comes)) order.push_back(step);
  }
  return order;
}

std::vector<Step> RandomSteps(std::mt19937& random) {
  static const char* const kSpecs[] = {"", "", "fixed:bits=32,block=256", "coo"};
  std::vector<Step> steps(6);
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i] = {1 + random() % 5, static_cast<int32_t>(random() % 4), kSpecs[random() % 4], {}};
    for (size_t before = 0; before < i; ++before)
      if (random() % 3 == 0) steps[i].after.push_back(before);
  }
  return steps;
}

}  // namespace

TEST_CASE("gpu stager: ranks may begin independent chains of operations in different orders") {
  // On each rank the second of one chain, which waits for the first, could have all lanes before the first of the other
  // chain gets one; and the first waits for the other rank's.
  for (const char* const spec : {"", "fixed:bits=32,block=256"}) {
    CAPTURE(spec);
    const std::vector<Step> steps = {{1, 0, spec, {}}, {8, 5, spec, {0}}, {1, 0, spec, {}}, {8, 5, spec, {2}}};
    RunOrders(steps, {{0, 1, 2, 3}, {2, 3, 0, 1}});
  }
}

TEST_CASE("gpu stager: whatever waits for whatever, in whatever order, it ends") {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const std::vector<Step> steps = RandomSteps(random);
    Orders orders;
    for (uint32_t rank = 0; rank < 2; ++rank) orders.push_back(OrderOf(steps, random));
    RunOrders(steps, orders);
  }
}

TEST_CASE("gpu stager: streams that wait on several threads, and operations that begin beside them") {
  SoftwareCuda cuda;
  cuda.CopyDelay(100);
  const auto gpu = cuda.Open();
  const auto gate = Made(Made(GpuGates::Create(gpu))->Make());
  Cluster cluster({.workers = 1, .partition_bytes = kPartition, .stall_warning = 0});
  REQUIRE(cluster.engine(0).UseGpu(gpu, {}).ok());
  GpuTensor held(cluster, 0, gpu, 8 * kPart, 1), free(cluster, 0, gpu, 8 * kPart, 101);
  CHECK(Made(gate->Block(held.stream().handle())));
  const auto waits = Made(held.Start(Op::kSum, 10));
  std::thread([&] { CHECK(free.Wait(*Made(free.Start(Op::kSum))).ok()); }).join();
  CHECK(!waits->done());
  gate->Open();
  CHECK(held.Wait(*waits).ok());
}

TEST_CASE("gpu stager: no memory is taken, freed or locked by who is waited for") {
  for (const char* const spec : {"coo", "fixed:bits=32,block=256", "topk:ratio=0.9,select=sampled", ""}) {
    CAPTURE(spec);
    SoftwareCuda cuda;
    cuda.CopyDelay(300);
    const auto gpu = cuda.Open();
    Cluster cluster({.workers = 1, .partition_bytes = 1 << 20, .stall_warning = 0});
    REQUIRE(cluster.engine(0).UseGpu(gpu, SoftwareCuda::Kernels()).ok());
    cuda.ThisIsTheProgram();
    std::vector<std::unique_ptr<GpuTensor>> tensors;
    for (size_t i = 0; i < 5; ++i)
      tensors.push_back(std::make_unique<GpuTensor>(cluster, 0, gpu, kPart << i, 1 + 100 * i, Twinned(spec, 1)));
    std::vector<std::shared_ptr<Operation>> operations;
    for (const auto& tensor : tensors) {  // each larger than the last, while streams wait for that
      if (!operations.empty()) CHECK(Made(tensor->Block(*operations.back())));
      operations.push_back(Made(tensor->Start(Op::kSum)));
    }
    CHECK(tensors.back()->Wait(*operations.back()).message() == "");
    CHECK(cuda.misuse() == "");
  }
}

TEST_CASE("gpu stager: what is submitted while the device fails, or the engine closes, ends with the reason") {
  for (const bool closes : {false, true})
    for (uint32_t nth = 1; nth <= 64; nth *= 4) {
      CAPTURE(closes);
      CAPTURE(nth);
      SoftwareCuda cuda;
      cuda.CopyDelay(20);
      const auto gpu = cuda.Open();
      Cluster cluster({.workers = 1, .partition_bytes = kPartition, .stall_warning = 0});
      Engine& engine = cluster.engine(0);
      REQUIRE(engine.UseGpu(gpu, {}).ok());
      if (!closes) cuda.Fail("cuMemcpyDtoHAsync_v2", cuda::kOutOfMemory, nth);
      const Code code = closes ? Code::kClosed : Code::kCapacity;
      std::vector<std::thread> threads;
      std::atomic<uint32_t> begun{0};
      for (uint64_t i = 0; i < 3; ++i)
        threads.emplace_back([&, i] {
          GpuTensor tensor(cluster, 0, gpu, 4 * kPart, 1 + 100 * i);
          for (;;) {
            auto operation = tensor.Start(Op::kSum);
            ++begun;
            const Status status = operation.ok() ? tensor.Wait(**operation) : operation.status();
            if (status.ok()) continue;
            CHECK(status.code() == code);
            return;
          }
        });
      while (closes && begun < nth) std::this_thread::yield();
      if (closes) engine.Close();
      for (std::thread& thread : threads) thread.join();
    }
}

}  // namespace byteps_like::testing
