// Engine and servers together on tensors with codecs, against the codec's own calls: results, residuals and counts of
// bytes are exactly theirs.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "csrc/base/log.h"
#include "tests/native/compression/coded_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr size_t kCount = 20011;

CodecUse UseOf(const std::string& text, uint32_t world) {
  const bool twoway = text.starts_with("twoway ");
  return {CodecOf(twoway ? text.substr(7) : text, world), text};
}

// Signs at random, one magnitude per rank: scales and their sums are small integers, so every order sums alike.
Floats Values(uint32_t rank, uint32_t round, size_t count = kCount) {
  std::minstd_rand random(1 + rank * 100 + round);
  Floats values(count);
  for (float& value : values) value = static_cast<float>(rank + 1) * (random() % 2 == 0 ? 1.0f : -1.0f);
  return values;
}

Floats Gauss(uint32_t rank, uint32_t round, size_t count = kCount) {
  std::minstd_rand random(1 + rank * 100 + round);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<Floats> OfAll(Floats (*values)(uint32_t, uint32_t, size_t), uint32_t workers, uint32_t round) {
  std::vector<Floats> xs;
  for (uint32_t rank = 0; rank < workers; ++rank) xs.push_back(values(rank, round, kCount));
  return xs;
}

// Elements that differ from the direct round's, over all ranks and rounds.
size_t WrongElements(Cluster& cluster, const std::string& spec, uint32_t rounds, uint64_t key) {
  std::atomic<size_t> wrong{0};
  const uint32_t workers = cluster.options().workers;
  cluster.Everybody([&](uint32_t rank) {
    const CodecUse use = UseOf(spec, workers);
    CodedTensor tensor(cluster, rank, kCount, use, key);
    for (uint32_t round = 0; round < rounds; ++round) {
      const Op op = round % 2 == 0 ? Op::kSum : Op::kAverage;
      tensor.data() = Values(rank, round);
      const Status status = tensor.Run(op);
      if (!status.ok()) {
        MESSAGE(spec << ": " << status.message());
        ++wrong;
        return cluster.engine(rank).Close();
      }
      const Direct direct = DirectRound(*use.codec, op, round).Run(OfAll(Values, workers, round), tensor.parts());
      for (size_t i = 0; i < kCount; ++i) wrong += tensor.data()[i] != direct.out[i];
    }
  });
  return wrong;
}

}  // namespace

TEST_CASE("coded: rounds are the codec's own, over every transport") {
  for (const char* scheme : {"inproc", "shm", "tcp"})
    for (const uint32_t workers : {1u, 2u, 3u}) {
      ClusterOptions options;
      options.scheme = scheme;
      options.workers = workers;
      options.servers = 1 + workers % 2;
      options.shards = 1 + workers % 3;
      CAPTURE(scheme);
      CAPTURE(workers);
      Cluster cluster(options);
      CHECK(WrongElements(cluster, kOnebit, 4, 100) == 0);
      CHECK(WrongElements(cluster, "step", 4, 200) == 0);
    }
}

TEST_CASE("coded: feedback telescopes, and residuals are the codec's own") {
  constexpr uint32_t kRounds = 6;
  Cluster cluster({.workers = 2, .shards = 2});
  std::vector<Floats> given(2, Floats(kCount)), residuals(2, Floats(kCount));
  std::vector<std::vector<Floats>> outs(2);
  cluster.Everybody([&](uint32_t rank) {
    CodedTensor tensor(cluster, rank, kCount, UseOf(kOnebit, 2), 100);
    cluster.engine(rank).SetFeedback(tensor.id(), {.residual = residuals[rank].data()});
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (round == 3) cluster.engine(rank).Rescale(tensor.id(), 0.5f);
      tensor.data() = Gauss(rank, round);
      CHECK(tensor.Run(Op::kSum).ok());
      outs[rank].push_back(tensor.data());
    }
  });
  // The same without an engine.
  const auto codec = CodecOf(kOnebit, 2);
  std::vector<Floats> left(2, Floats(kCount));
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::vector<Floats> xs = OfAll(Gauss, 2, round);
    for (uint32_t rank = 0; rank < 2; ++rank)
      for (size_t i = 0; i < kCount; ++i) xs[rank][i] += (round == 3 ? 0.5f : 1.0f) * left[rank][i];
    const Direct direct = DirectRound(*codec, Op::kSum, round).Run(xs, cluster.Cut(kCount * 4, 100));
    left = direct.residuals;
    CHECK(outs[0][round] == direct.out);
    CHECK(outs[1][round] == direct.out);
  }
  CHECK(left == residuals);
}

TEST_CASE("coded: momentum correction, with and without a mask, and what isn't finite") {
  Cluster cluster({.workers = 1});
  CodedTensor tensor(cluster, 0, kCount, UseOf("step", 1), 100);
  Floats residual(kCount, 0.25f), momentum(kCount, 2.0f);
  const Floats x = Gauss(0, 0);
  for (const bool masked : {false, true}) {
    std::fill(residual.begin(), residual.end(), 0.25f);
    std::fill(momentum.begin(), momentum.end(), 2.0f);
    cluster.engine(0).SetFeedback(tensor.id(), {residual.data(), momentum.data(), 0.5f, true, masked});
    tensor.data() = x;
    REQUIRE(tensor.Run(Op::kSum).ok());
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) {
      const float m = 0.5f * 2.0f + x[i], g = x[i] + 0.5f * m + 0.25f;
      const bool sent = residual[i] != g;
      wrong += std::fabs(residual[i] + tensor.data()[i] - g) > 1e-6f;
      wrong += momentum[i] != (masked && sent ? 0 : m);
    }
    CHECK(wrong == 0);
  }
  cluster.engine(0).SetFeedback(tensor.id(), {residual.data(), momentum.data(), 0.5f, false, false});
  tensor.data() = x;
  tensor.data()[5] = INFINITY;
  REQUIRE(tensor.Run(Op::kSum).ok());
  CHECK(std::isfinite(residual[5]));
  CHECK(std::isfinite(momentum[5]));
}

TEST_CASE("coded: exactly the payloads cross the wire, each codec is named once per link") {
  Cluster cluster({.workers = 2, .servers = 2, .shards = 2});
  constexpr uint32_t kRounds = 3, kLinks = 4;
  uint64_t payloads = 0;
  cluster.Everybody([&](uint32_t rank) {
    const CodecUse use = UseOf("twoway " + kOnebit, 2);
    CodedTensor tensor(cluster, rank, kCount, use, 100), other(cluster, rank, kCount, use, 200);
    for (uint32_t round = 0; round < kRounds; ++round)
      for (CodedTensor* one : {&tensor, &other}) {
        one->data() = Values(rank, round);
        CHECK(one->Run(Op::kSum).ok());
      }
    uint64_t bytes = 0;
    for (const PartitionSpec& part : tensor.parts()) bytes += 16 + use.codec->Plan(part.bytes / 4).payload;
    if (rank == 0) payloads = 2 * kRounds * bytes;
  });
  for (uint32_t rank = 0; rank < 2; ++rank) {
    CHECK(cluster.engine(rank).counters().payload_received == payloads);
    CHECK(cluster.engine(rank).counters().payload_sent == payloads + kLinks * ("twoway " + kOnebit).size());
    CHECK(cluster.engine(rank).coded().bytes_in == 2 * kRounds * kCount * 4);
    CHECK(cluster.engine(rank).coded().bytes_out == payloads);
  }
}

TEST_CASE("coded: a broadcast goes raw, other operations are refused, a moved tensor keeps its feedback") {
  Cluster cluster({.workers = 2, .shards = 2});
  cluster.Everybody([&](uint32_t rank) {
    CodedTensor tensor(cluster, rank, kCount, UseOf("step", 2), 100);
    tensor.data() = Gauss(rank, 0);
    CHECK(tensor.Run(Op::kBroadcast, 1).ok());
    CHECK(tensor.data() == Gauss(1, 0));
    CHECK(tensor.Run(Op::kMax).code() == Code::kInvalid);
    Floats residual(kCount, 1.0f);
    cluster.engine(rank).SetFeedback(tensor.id(), {.residual = residual.data()});
    cluster.engine(rank).Rescale(tensor.id(), 3.0f);
    CodedTensor moved(cluster, rank, kCount, UseOf("step", 2), 5000);
    cluster.engine(rank).Inherit(moved.id(), tensor.id());
    cluster.engine(rank).Retire(tensor.id());
    moved.data() = Floats(kCount, 0.0f);
    CHECK(moved.Run(Op::kSum).ok());
    size_t wrong = 0;
    for (const float value : moved.data()) wrong += std::fabs(value - 6.0f) > 1e-5f;
    CHECK(wrong == 0);
  });
}

TEST_CASE("coded: what can't be declared") {
  Cluster cluster({.workers = 2});
  const CodecUse use = UseOf(kOnebit, 2);
  CHECK(cluster.engine(0).DeclareCoded({{1, 0, 4096, 0}}, UseOf(kOnebit, 3)).status().code() == Code::kInvalid);
  CHECK(cluster.engine(0).DeclareCoded({{1, 0, 4098, 0}}, use).status().code() == Code::kInvalid);
  CHECK(cluster.engine(0).DeclareCoded({{kPreludeKey | 1, 0, 4096, 0}}, use).status().code() == Code::kInvalid);
}

TEST_CASE("coded: links that break cost nothing but time") {
  std::atomic<int> broken{0};
  SetLogSink([&](LogLevel, std::string_view text) { broken += text.find("link lost") != text.npos; });
  size_t wrong = 0;
  constexpr int kRuns = 30;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    ClusterOptions options;
    options.workers = 2 + seed % 2;
    options.scheme = seed % 3 == 0 ? "tcp" : seed % 3 == 1 ? "inproc" : "shm";
    options.chaos = seed % 2 == 0 ? "drop=0.01" : "corrupt=0.01&delay_ms=0.2";
    options.seed = seed;
    options.segment_bytes = 512;
    if (seed % 5 == 0) options.credit_bytes = 2000;
    Cluster cluster(options);
    wrong += WrongElements(cluster, kOnebit, 4, 100);
    wrong += WrongElements(cluster, "step", 2, 200);
  }
  SetLogSink(nullptr);
  CHECK(wrong == 0);
  CHECK(broken > kRuns / 2);  // else this test proves little
}

TEST_CASE("coded: an engine that closes in the middle of encoding ends what is in flight") {
  Cluster cluster({.workers = 2});  // one of which sends nothing: no round ends before the engine does
  const auto gate = std::make_shared<GatedCodec>(CodecOf(kOnebit, 2));
  CodedTensor tensor(cluster, 0, kCount, {gate, kOnebit}, 100);
  tensor.data() = Values(0, 0);
  auto operation = tensor.Start(Op::kSum);
  REQUIRE(operation.ok());
  gate->AwaitEncode();
  std::thread closer([&] { cluster.engine(0).Close(); });
  gate->Open();
  closer.join();
  CHECK(cluster.engine(0).Wait(**operation, Clock::now() + std::chrono::seconds(5)).code() == Code::kClosed);
}

}  // namespace byteps_like::testing
