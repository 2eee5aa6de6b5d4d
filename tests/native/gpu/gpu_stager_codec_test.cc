// Every codec of the registry on tensors of a (software) GPU, through a real server, beside a rank without a GPU: the
// same bits as where both encode on the CPU, and exact counts of bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "compression/gpu/registry.h"
#include "csrc/base/trace.h"
#include "tests/native/compression/codec_specs.h"
#include "tests/native/compression/coded_fixture.h"
#include "tests/native/gpu/gpu_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kWorld = 2, kRounds = 2;

// Some stretches are zero, for codecs that leave them out.
Floats ValuesWithGaps(size_t count, uint32_t rank, uint32_t round) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = i / 300 % 3 == rank ? 0.0f : static_cast<float>((i * 7 + rank * 13 + round * 101) % 1999) / 64 - 15;
  return values;
}

struct Arrays {  // of a rank, after its rounds
  Floats out, residual, momentum;
  CodedCounters coded;
  LinkCounters links;
};

struct Case {
  std::string spec;
  size_t count;
  bool feeds_back;
  ClusterOptions options = {.workers = kWorld};
};

Feedback FeedbackOf(const Case& one, float* residual, float* momentum, bool on_gpu) {
  if (!one.feeds_back) return {};
  return {.residual = residual, .momentum = momentum, .mu = 0.5f, .nesterov = true, .masked = true, .on_gpu = on_gpu};
}

Arrays RunOnHost(Cluster& cluster, uint32_t rank, const Case& one) {
  Engine& engine = cluster.engine(rank);
  const auto codec = CodecOf(one.spec, kWorld);
  CodedTensor tensor(cluster, rank, one.count, {codec, codec->spec()}, 1);
  Arrays arrays;
  arrays.residual = arrays.momentum = Floats(one.count);
  engine.SetFeedback(tensor.id(), FeedbackOf(one, arrays.residual.data(), arrays.momentum.data(), false));
  for (uint32_t round = 0; round < kRounds; ++round) {
    tensor.data() = ValuesWithGaps(one.count, rank, round);
    CHECK(tensor.Run(round == 1 ? Op::kAverage : Op::kSum).ok());
  }
  arrays.out = tensor.data();
  arrays.coded = engine.coded();
  arrays.links = engine.counters();
  engine.Close();
  return arrays;
}

Floats Contents(const GpuMemory& memory) {
  const auto* const floats = reinterpret_cast<const float*>(memory.address());
  return {floats, floats + memory.bytes() / sizeof(float)};
}

Arrays RunOnGpu(Cluster& cluster, uint32_t rank, const Case& one, const std::shared_ptr<Gpu>& gpu) {
  Engine& engine = cluster.engine(rank);
  const auto codec = CodecOf(one.spec, kWorld);
  REQUIRE(engine.UseGpu(gpu, SoftwareCuda::Kernels()).ok());
  GpuTensor tensor(cluster, rank, gpu, one.count, 1,
                   {codec, codec->spec(), Made(MakeGpuCodec(codec, SoftwareCuda::Kernels()))});
  CHECK(engine.EncodesOnGpu(tensor.id()));
  const auto residual = Made(GpuMemory::Allocate(gpu, one.count * 4));
  const auto momentum = Made(GpuMemory::Allocate(gpu, one.count * 4));
  for (const auto* const memory : {&residual, &momentum})
    std::memset(reinterpret_cast<void*>((*memory)->address()), 0, one.count * 4);
  engine.SetFeedback(tensor.id(), FeedbackOf(one, reinterpret_cast<float*>(residual->address()),
                                             reinterpret_cast<float*>(momentum->address()), true));
  for (uint32_t round = 0; round < kRounds; ++round) {
    tensor.Set(ValuesWithGaps(one.count, rank, round));
    auto operation = tensor.Start(round == 1 ? Op::kAverage : Op::kSum);
    REQUIRE(operation.ok());
    CHECK(Made(tensor.Block(**operation)));
    CHECK(tensor.Wait(**operation).message() == "");
  }
  Arrays arrays{tensor.Get(), Contents(*residual), Contents(*momentum), engine.gpu_coded(), engine.counters()};
  CHECK(engine.coded().bytes_in == 0);
  engine.Close();
  return arrays;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// What of the sizes of one round's payloads is known before: headers, preludes, and as much as is copied.
struct Sizes {
  uint64_t heads = 0, preludes = 0, payloads = 0;
};
Sizes SizesOf(const Codec& codec, const std::vector<PartitionSpec>& parts) {
  Sizes sizes;
  for (const PartitionSpec& part : parts) {
    const CodecPlan plan = codec.Plan(part.bytes / 4);
    sizes.heads += plan.dense ? 0 : kPayloadHeader;
    sizes.preludes += plan.prelude;
    sizes.payloads += plan.payload;
  }
  return sizes;
}

void Compare(const Case& one) {
  CAPTURE(one.spec);
  CAPTURE(one.feeds_back);
  SoftwareCuda cuda;
  Arrays with, without, other, same;
  uint64_t down = 0, up = 0;
  {
    Cluster cluster(one.options);
    const auto gpu = cuda.Open();
    cluster.Everybody([&](uint32_t rank) {
      (rank == 0 ? with : other) = rank == 0 ? RunOnGpu(cluster, 0, one, gpu) : RunOnHost(cluster, 1, one);
    });
    down = cluster.engine(0).bytes_down();
    up = cluster.engine(0).bytes_up();
  }
  Cluster cluster(one.options);
  cluster.Everybody([&](uint32_t rank) { (rank == 0 ? without : same) = RunOnHost(cluster, rank, one); });
  CHECK(SameBits(with.out, without.out));
  CHECK(SameBits(with.residual, without.residual));
  CHECK(SameBits(with.momentum, without.momentum));
  CHECK(SameBits(other.out, same.out));
  CHECK(SameBits(other.residual, same.residual));
  CHECK(with.coded.bytes_in == without.coded.bytes_in);
  CHECK(with.coded.bytes_out == without.coded.bytes_out);
  const auto codec = CodecOf(one.spec, kWorld);
  const Sizes sizes = SizesOf(*codec, cluster.Cut(one.count * 4, 1));
  const bool exact = sizes.payloads >= (uint64_t{256} << 10);  // what is larger is asked for its size
  CHECK(down == (exact ? with.coded.bytes_out - kRounds * sizes.heads : kRounds * (sizes.preludes + sizes.payloads)));
  // Preludes for encoding and for decoding; the network has brought them once.
  CHECK(up == without.links.payload_received - kRounds * sizes.heads + kRounds * sizes.preludes);
}

}  // namespace

TEST_CASE("gpu stager: every codec that has a twin gives the CPU's bits, with feedback and without") {
  for (const std::string spec : kSpecs) {
    if (GpuSource(spec.substr(0, spec.find(':'))).empty()) continue;
    for (const bool feeds_back : {false, true}) Compare({spec, 5000, feeds_back});  // two partitions
  }
}

TEST_CASE("gpu stager: a large payload of unknown size comes down by its size, not its bound") {
  for (const char* const spec : {"blocksparse:block=256,dense=1", "coo", "topk:ratio=0.2,select=sampled", "bitmap"})
    Compare({spec, 80000, true, {.workers = kWorld, .partition_bytes = 1 << 20}});
}

TEST_CASE("gpu stager: the timeline shows each stage of an encoded partition, and of its prelude") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  Cluster cluster({.workers = 1});
  Engine& engine = cluster.engine(0);
  REQUIRE(engine.UseGpu(gpu, SoftwareCuda::Kernels()).ok());
  const auto codec = CodecOf("fixed:bits=16,block=256", 1);
  GpuTensor tensor(cluster, 0, gpu, 10000, 1,
                   {codec, codec->spec(), Made(MakeGpuCodec(codec, SoftwareCuda::Kernels()))});
  tensor.Set(ValuesWithGaps(10000, 0, 0));
  StartTracing(1 << 12);
  (void)DrainTrace();
  auto operation = tensor.Start(Op::kSum);
  REQUIRE(operation.ok());
  CHECK(tensor.Wait(**operation).ok());
  StopTracing();
  std::map<std::pair<TraceKind, bool>, std::pair<uint32_t, uint64_t>> seen;  // how many, and their bytes
  for (const TraceRecord& record : DrainTrace().records) {
    auto& [count, bytes] = seen[{record.kind, (record.key & kPreludeKey) != 0}];
    ++count;
    bytes += record.bytes;
  }
  const std::pair<uint32_t, uint64_t> raw{3, 40000}, payloads{3, 20000}, preludes{3, 40};
  CHECK(seen[{TraceKind::kReady, false}] == raw);
  CHECK(seen.count({TraceKind::kReady, true}) == 0);
  for (const TraceKind kind : {TraceKind::kEncoded, TraceKind::kDown}) {
    CHECK(seen[{kind, false}] == payloads);
    CHECK(seen[{kind, true}] == preludes);
  }
  for (const TraceKind kind : {TraceKind::kUp, TraceKind::kDecoded}) CHECK(seen[{kind, false}] == payloads);
}

TEST_CASE("gpu registry: each codec has a twin, or says why not") {
  for (const std::string& name : CodecNames()) {
    CAPTURE(name);
    const bool covered = std::any_of(std::begin(kSpecs), std::end(kSpecs),
                                     [&](const std::string spec) { return spec.substr(0, spec.find(':')) == name; });
    CHECK(covered);
    CHECK(GpuSource(name).empty() != WhyNoTwin(name).empty());
  }
}

}  // namespace byteps_like::testing
