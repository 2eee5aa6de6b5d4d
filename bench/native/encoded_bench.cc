// Measures how fast a shard's thread sums encoded contributions: rounds of 4 workers of one partition of 4 MiB of fp32,
// with all a server does for them but the links. Per codec given (default: onebit), median of the runs, in elements of
// contributions per second of CPU time: payloads copied in, accumulated, the result encoded; beside it the accumulation
// alone, and as ratios to the rate of fp32 sums in memory that the machine's streaming rate allows.
//
//   cmake -S . -B build/bench -G Ninja -DBYTEPS_LIKE_BENCH=ON -DBYTEPS_LIKE_PYTHON=OFF
//   cmake --build build/bench --target encoded_bench && build/bench/encoded_bench "twoway onebit:block=1024"
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>

#include "csrc/kernels/stream_rate.h"
#include "server/policy/feedback.h"
#include "server/rounds/encoded_round.h"
#include "tests/native/server/encoded_fixture.h"

namespace byteps_like {
namespace {

constexpr uint32_t kWorkers = 4, kNumel = 1u << 20, kKeys = 16;
constexpr int kRuns = 15;
constexpr uint32_t kSegment = 128u << 10;

double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Median(const std::function<void()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i <= kRuns; ++i) {
    const double begin = CpuSeconds();
    run();
    if (i > 0) seconds.push_back(CpuSeconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// A key at a server, for the round's number that comes next.
struct Key {
  ServerFeedback feedback;
  EncodedRound round;
  Key(uint64_t key, ShardMemory& memory) : feedback(memory), round(key, memory) {}
};

const Seats kSeats(kWorkers);

void RunRound(Key& key, const ServerCodec& codec, uint32_t number, const std::vector<testing::Payload>& payloads) {
  testing::NoLink link;
  for (uint32_t rank = 0; rank < payloads.size(); ++rank) {
    const testing::Payload& payload = payloads[rank];
    Header header;
    header.rank = rank;
    header.round = number;
    header.total = static_cast<uint32_t>(payload.size());
    const Terms terms = TermsOf(header, &codec);
    if (rank == 0) key.round.Begin(header, terms, testing::PolicyFor(terms, &key.feedback), kSeats);
    for (header.offset = 0; header.offset < payload.size(); header.offset += header.length) {
      header.length = std::min<uint32_t>(kSegment, header.total - static_cast<uint32_t>(header.offset));
      (void)key.round.Reserve(header).ok();
      std::byte* const place = key.round.Place(link, header);
      std::memcpy(place, payload.data() + header.offset, header.length);
      (void)key.round.Land(link, header, place).ok();
    }
    (void)key.round.Advance().ok();
  }
  key.round.Release();
}

int Bench(const std::string& text) {
  ServerCodecs codecs;
  codecs.Reset(kWorkers);
  auto codec = codecs.Find(text);
  if (!codec.ok()) return std::fprintf(stderr, "%s\n", codec.status().message().c_str()), 1;
  const Codec& plain = *(*codec)->codec;
  std::vector<testing::Floats> xs;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) xs.push_back(testing::Gaussian(kNumel, rank));
  const auto payloads = testing::Encoded(plain, xs, 0, 0);

  std::atomic<uint64_t> held{0};
  ShardMemory memory("bench", 0, held);
  std::vector<std::unique_ptr<Key>> keys;
  for (uint64_t key = 0; key < kKeys; ++key) keys.push_back(std::make_unique<Key>(key, memory));
  uint32_t number = 0;
  const double whole = Median([&] {
    for (auto& key : keys) RunRound(*key, **codec, number, payloads);
    ++number;
  });
  testing::Scratch sum(plain.Plan(kNumel).accumulator), workspace(plain.Plan(kNumel).workspace);
  const double accumulate = Median([&] {
    for (uint32_t i = 0; i < kKeys * kWorkers; ++i)
      (void)plain
          .Accumulate(kNumel, std::span(payloads[i % kWorkers]).subspan(kPayloadHeader), workspace.data(), sum.data())
          .ok();
  });
  const double elements = double{kKeys} * kWorkers * kNumel;
  const double fp32 = kernels::StreamRate(size_t{64} << 20, 1.0) / 12;
  std::printf(
      "%-32s %7zu bytes  round %5.2f G/s = %4.1f x  accumulate %5.2f G/s = %4.1f x  (fp32 in memory %4.2f G/s)\n",
      text.c_str(), payloads[0].size(), elements / whole / 1e9, elements / whole / fp32, elements / accumulate / 1e9,
      elements / accumulate / fp32, fp32 / 1e9);
  return 0;
}

}  // namespace
}  // namespace byteps_like

int main(int count, char** arguments) {
  if (count < 2) return byteps_like::Bench("onebit:block=1024");
  int failed = 0;
  for (int i = 1; i < count; ++i) failed |= byteps_like::Bench(arguments[i]);
  return failed;
}
